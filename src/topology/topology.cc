#include "topology/topology.h"

#include <algorithm>
#include <climits>
#include <set>

#include "base/str.h"

namespace moonpool::topology {
namespace {

std::vector<std::string_view> Components(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/'), path.size());
    if (end > 0) parts.push_back(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return parts;
}

// The firmware's distance between two nodes; "unknown" lies behind every known one.
int NodeDistance(const Topology& topology, int from, int to) {
  if (from == to && from >= 0) return 10;
  for (const NumaNode& node : topology.nodes) {
    if (node.id != from) continue;
    const auto it = node.distances.find(to);
    if (it != node.distances.end()) return it->second;
  }
  return INT_MAX;
}

// Prefers the NICs at the smallest rank.
template <typename Rank>
Affinity Nearest(const std::vector<const Nic*>& nics, const Rank& rank) {
  Affinity row;
  auto best = rank(Nic{});
  bool first = true;
  for (const Nic* nic : nics) {
    const auto here = rank(*nic);
    if (first || here < best) best = here;
    first = false;
  }
  for (const Nic* nic : nics) {
    (rank(*nic) == best ? row.preferred : row.others).push_back(nic->name);
  }
  return row;
}

void AppendJsonString(std::string& out, std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  out += '"';
}

void AppendJsonList(std::string& out, const std::vector<std::string>& names) {
  out += '[';
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += ',';
    AppendJsonString(out, names[i]);
  }
  out += ']';
}

}  // namespace

int PciDistance(std::string_view a, std::string_view b) {
  const auto x = Components(a);
  const auto y = Components(b);
  size_t common = 0;
  while (common < x.size() && common < y.size() && x[common] == y[common]) ++common;
  if (common == 0) return kFar;
  return static_cast<int>(std::max(x.size(), y.size()) - common);
}

Matrix AffinityMatrix(const Topology& topology, NicKind kind) {
  std::vector<const Nic*> nics;
  for (const Nic& nic : topology.nics) {
    if (nic.kind == kind && !nic.is_virtual && nic.up) nics.push_back(&nic);
  }
  std::sort(nics.begin(), nics.end(), [](const Nic* a, const Nic* b) { return a->name < b->name; });
  Matrix matrix;
  for (const NumaNode& node : topology.nodes) {
    matrix[Str("cpu:", node.id)] = Nearest(
        nics, [&](const Nic& nic) { return NodeDistance(topology, node.id, nic.numa_node); });
  }
  for (const Device& device : topology.accelerators) {
    matrix[device.location] = Nearest(nics, [&](const Nic& nic) {
      return std::pair(NodeDistance(topology, device.numa_node, nic.numa_node),
                       PciDistance(device.pci_path, nic.pci_path));
    });
  }
  return matrix;
}

std::vector<std::string> RankNics(const Matrix& matrix, std::string_view location) {
  const auto row = matrix.find(std::string(location));
  if (row != matrix.end()) {
    std::vector<std::string> ranked = row->second.preferred;
    ranked.insert(ranked.end(), row->second.others.begin(), row->second.others.end());
    return ranked;
  }
  std::map<std::string, int> votes;
  for (const auto& [place, affinity] : matrix) {
    for (const std::string& name : affinity.preferred) ++votes[name];
    for (const std::string& name : affinity.others) votes.try_emplace(name, 0);
  }
  std::vector<std::string> ranked;
  for (const auto& [name, count] : votes) ranked.push_back(name);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](const std::string& a, const std::string& b) { return votes[a] > votes[b]; });
  return ranked;
}

std::string ToMooncakeJson(const Matrix& matrix) {
  std::string out = "{";
  for (const auto& [location, affinity] : matrix) {
    if (out.size() > 1) out += ',';
    AppendJsonString(out, location);
    out += ":[";
    AppendJsonList(out, affinity.preferred);
    out += ',';
    AppendJsonList(out, affinity.others);
    out += ']';
  }
  return out + "}";
}

}  // namespace moonpool::topology
