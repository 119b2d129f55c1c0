// The lines of torch_optimizers.txt: PyTorch's results for the numbers in torch_optimizers.py.
#pragma once

#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

inline std::map<std::string, std::vector<double>> torch_reference() {
  std::ifstream file(MUSTER_SOURCE_DIR "/tests/train/reference/torch_optimizers.txt");
  std::map<std::string, std::vector<double>> lines;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (double number = 0; words >> number;) lines[name].push_back(number);
  }
  if (lines.empty()) throw std::runtime_error("torch_optimizers.txt cannot be read");
  return lines;
}
