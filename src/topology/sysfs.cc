#include "topology/sysfs.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace moonpool::topology::sysfs {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileMax = size_t{64} * 1024;
constexpr size_t kCpusMax = 65536;

bool IsHex(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c); });
}

// "0000:00:03.0"
bool IsPciAddress(std::string_view name) {
  const size_t dot = name.rfind('.');
  const size_t colon = name.rfind(':');
  if (dot == name.npos || colon == name.npos || colon > dot) return false;
  const size_t first = name.find(':');
  return first != colon && IsHex(name.substr(0, first)) &&
         IsHex(name.substr(first + 1, colon - first - 1)) &&
         IsHex(name.substr(colon + 1, dot - colon - 1)) && IsHex(name.substr(dot + 1));
}

bool TakeNumber(std::string_view& text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

}  // namespace

std::string Read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return {};
  std::string text(kFileMax, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

std::optional<int64_t> ReadNumber(const fs::path& file) {
  const std::string text = Read(file);
  std::string_view digits = text;
  int base = 10;
  if (digits.starts_with("0x")) {
    digits.remove_prefix(2);
    base = 16;
  }
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::vector<std::string> List(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (!name.starts_with('.')) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<int> ParseCpuList(std::string_view text) {
  std::vector<int> cpus;
  int first = 0;
  while (TakeNumber(text, first)) {
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      if (!TakeNumber(text, last)) break;
    }
    for (int cpu = first; cpu <= last && cpus.size() < kCpusMax; ++cpu) cpus.push_back(cpu);
    if (!text.starts_with(',')) break;
    text.remove_prefix(1);
  }
  return cpus;
}

std::string LinkName(const fs::path& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  return error ? std::string() : target.filename().string();
}

fs::path Resolve(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? fs::path() : real;
}

std::string PciPath(const fs::path& device) {
  std::string path;
  for (const fs::path& part : device) {
    const std::string name = part.string();
    const bool root = name.starts_with("pci") && name.find(':') != std::string::npos;
    if (!root && (path.empty() || !IsPciAddress(name))) continue;
    if (!path.empty()) path += '/';
    path += name;
  }
  return path;
}

}  // namespace moonpool::topology::sysfs
