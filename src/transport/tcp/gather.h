#pragma once

// Gather: a list of memory ranges that a socket fills or drains in order, in bounded steps, each of
// which may stop anywhere. It keeps its place between steps.
//
//   for (Gather::Step step = g.Next(256 << 10); step.count > 0; step = g.Next(256 << 10)) {
//     n = readv(fd, step.ranges, step.count);
//     g.Advance(n, [](size_t index, const void* data, size_t size) { … });
//   }
//
// Threads: thread-compatible. Borrows the ranges.

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace moonpool::tcp {

class Gather {
 public:
  // The kernel takes no more ranges in one call (IOV_MAX).
  static constexpr size_t kRangesMax = 1024;

  struct Step {
    iovec* ranges;
    int count;
    size_t first;  // the index of ranges[0]
    size_t bytes;
  };

  void Clear() {
    ranges_.clear();
    at_ = 0;
    trimmed_ = 0;
  }
  // Requires: size > 0.
  void Add(void* data, size_t size) { ranges_.push_back({data, size}); }

  size_t size() const { return ranges_.size(); }
  size_t at() const { return at_; }  // the first range that is not finished
  bool done() const { return at_ == ranges_.size(); }
  size_t left_in(size_t index) const { return ranges_[index].iov_len; }

  // The next ranges, up to `bytes` bytes and `count_max` ranges; empty when done. What it returns
  // is valid until any other call.
  Step Next(size_t bytes, size_t count_max = kRangesMax) {
    Restore();
    size_t end = at_;
    size_t sum = 0;
    while (end < ranges_.size() && sum < bytes && end - at_ < count_max) {
      sum += ranges_[end++].iov_len;
    }
    if (sum > bytes) {
      trimmed_ = sum - bytes;
      trimmed_at_ = end - 1;
      ranges_[trimmed_at_].iov_len -= trimmed_;
      sum = bytes;
    }
    return {ranges_.data() + at_, static_cast<int>(end - at_), at_, sum};
  }

  // Moves on by `size` bytes and calls visit(index, data, size) for each part of a range in them.
  template <typename Visit>
  void Advance(size_t size, Visit&& visit) {
    Restore();
    while (size > 0) {
      iovec& range = ranges_[at_];
      const size_t part = std::min(size, range.iov_len);
      visit(at_, static_cast<const void*>(range.iov_base), part);
      range.iov_base = static_cast<std::byte*>(range.iov_base) + part;
      range.iov_len -= part;
      size -= part;
      if (range.iov_len == 0) ++at_;
    }
  }

  // Makes what is left of ranges [first, end) point to `scratch`, which is as long as the longest.
  void Redirect(size_t first, size_t end, void* scratch) {
    Restore();
    for (size_t i = std::max(first, at_); i < std::min(end, ranges_.size()); ++i) {
      ranges_[i].iov_base = scratch;
    }
  }

 private:
  void Restore() {
    if (trimmed_ > 0) ranges_[trimmed_at_].iov_len += trimmed_;
    trimmed_ = 0;
  }

  std::vector<iovec> ranges_;
  size_t at_ = 0;
  size_t trimmed_ = 0;  // bytes that the last Next took off ranges_[trimmed_at_]
  size_t trimmed_at_ = 0;
};

// One step of a gather to a socket, without waiting. `more`: more follows at once. Like sendmsg(2).
inline ssize_t SendRanges(int fd, const Gather::Step& step, bool more) {
  const int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0);
  if (step.count == 1) return send(fd, step.ranges->iov_base, step.ranges->iov_len, flags);
  msghdr message{};
  message.msg_iov = step.ranges;
  message.msg_iovlen = static_cast<size_t>(step.count);
  return sendmsg(fd, &message, flags);
}

}  // namespace moonpool::tcp
