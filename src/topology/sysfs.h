#pragma once

// Reading sysfs: small files and directories that may be missing, with defaults instead of errors.
// Threads: pure functions of the file system.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moonpool::topology::sysfs {

// The first 64 KiB without trailing white space; empty when there is no such file.
std::string Read(const std::filesystem::path& file);

// A whole decimal or 0x-hexadecimal number; nothing when the file holds something else.
std::optional<int64_t> ReadNumber(const std::filesystem::path& file);

// The names inside, sorted, without dots; empty when there is no such directory.
std::vector<std::string> List(const std::filesystem::path& directory);

// "0-3,8" -> 0 1 2 3 8. Stops at what is not that; at most 65536 numbers.
std::vector<int> ParseCpuList(std::string_view text);

// The last component of the link's target; empty when there is none.
std::string LinkName(const std::filesystem::path& link);

// Where links lead in the end; empty when nowhere.
std::filesystem::path Resolve(const std::filesystem::path& path);

// From ".../devices/pci0000:00/0000:00:01.0/0000:01:00.0/net/eth0" the components that are PCI
// roots, bridges and devices: "pci0000:00/0000:00:01.0/0000:01:00.0". Empty: not on PCI.
std::string PciPath(const std::filesystem::path& device);

}  // namespace moonpool::topology::sysfs
