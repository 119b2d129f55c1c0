// Copies a safetensors file tensor by tensor: copy_safetensors FROM TO. The test package_tensors.py compares both
// files.
#include <cstdio>
#include <exception>
#include <vector>

#include <muster/data/sources/safetensors.hpp>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const muster::data::safetensors_file file(argv[1]);
    std::vector<muster::data::tensor_view> tensors;
    for (const auto& tensor : file.tensors()) tensors.push_back({tensor, file.values(tensor)});
    muster::data::write_safetensors(argv[2], tensors, file.metadata());
  } catch (const std::exception& failed) {
    std::fprintf(stderr, "%s\n", failed.what());
    return 3;
  }
}
