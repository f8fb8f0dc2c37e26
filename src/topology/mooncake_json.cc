#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "base/str.h"
#include "topology/topology.h"

namespace moonpool::topology {
namespace {

namespace json = boost::json;

constexpr size_t kTextMax = 1 << 20;

Status Bad(std::string_view location, std::string_view what) {
  return Status(Code::kInvalidArgument, Str("topology, location \"", location, "\": ", what,
                                            "; expected [[preferred NICs],[other NICs]]"));
}

Result<std::vector<std::string>> Names(std::string_view location, const json::value& value) {
  const json::array* list = value.if_array();
  if (list == nullptr) return Bad(location, "a list of NICs is not an array");
  std::vector<std::string> names;
  for (const json::value& item : *list) {
    const json::string* name = item.if_string();
    if (name == nullptr) return Bad(location, "the name of a NIC is not a string");
    if (name->empty()) return Bad(location, "the name of a NIC is empty");
    names.emplace_back(std::string_view(name->data(), name->size()));
  }
  return names;
}

}  // namespace

Result<Matrix> FromMooncakeJson(std::string_view text) {
  if (text.size() > kTextMax) {
    return Status(Code::kInvalidArgument,
                  Str("topology: ", text.size(), " bytes of JSON, at most ", kTextMax));
  }
  json::error_code error;
  const json::value parsed = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) {
    return Status(Code::kInvalidArgument, Str("topology: not JSON: ", error.message()));
  }
  const json::object* object = parsed.if_object();
  if (object == nullptr) {
    return Status(Code::kInvalidArgument,
                  "topology: not an object of location -> [[preferred NICs],[other NICs]]");
  }
  Matrix matrix;
  for (const auto& item : *object) {
    const std::string location(item.key().data(), item.key().size());
    const json::array* pair = item.value().if_array();
    if (pair == nullptr) return Bad(location, "not an array");
    if (pair->size() != 2) return Bad(location, Str("an array of ", pair->size(), " elements"));
    Affinity& row = matrix[location];
    MOONPOOL_ASSIGN_OR_RETURN(row.preferred, Names(location, (*pair)[0]));
    MOONPOOL_ASSIGN_OR_RETURN(row.others, Names(location, (*pair)[1]));
  }
  return matrix;
}

}  // namespace moonpool::topology
