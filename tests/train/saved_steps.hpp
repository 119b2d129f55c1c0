// The checkpoints in a folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// Returns the steps of the complete checkpoints, ascending.
inline std::vector<std::uint64_t> saved_steps(const std::string& folder) {
  std::vector<std::uint64_t> steps;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".state")) steps.push_back(std::stoull(name.substr(name.find('-') + 1)));
  }
  std::ranges::sort(steps);
  return steps;
}
