// Writes the records of a source into a file, each after its length (8 bytes), and prints their labels, "bad" for a bad
// record: dump_source SPECIFICATION FILE. The test package_records.py compares them with the contents as Python wrote
// them.
#include <cstdio>
#include <fstream>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/open.hpp>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const auto source = muster::open_source(argv[1]);
    std::ofstream out(argv[2], std::ios::binary);
    std::vector<float> labels(source.schema().labels.size());
    for (muster::sample_id id = 0; id < source.size(); ++id) {
      std::uint64_t size = 0;
      source.sizes({&id, 1}, {&size, 1});
      std::vector<char> record(size);
      std::vector<muster::bad_record> bad;
      source.read({&id, 1}, {std::as_writable_bytes(std::span(record)), labels}, &bad);
      out.write(reinterpret_cast<const char*>(&size), sizeof size);
      out.write(record.data(), static_cast<std::streamsize>(size));
      for (const float label : labels) std::printf("%.9g ", static_cast<double>(label));
      std::puts(bad.empty() ? "" : "bad");
    }
    return out.flush() ? 0 : 1;
  } catch (const muster::error& failed) {
    std::fprintf(stderr, "%s\n", failed.what());
    return failed.exit_status();
  }
}
