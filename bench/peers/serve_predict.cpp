// muster's part of serve.py: seconds of a prediction in process. Each line of the input is ROWS COUNT.
//
//   serve_predict MODEL_FOLDER INPUT OUTPUT     INPUT has rows of the model's input, OUTPUT receives the predictions
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/clock.hpp>

#include "../../examples/serve/models.hpp"

int main(int argc, char** argv) {
  if (argc != 4) return std::fputs("usage: serve_predict MODEL_FOLDER INPUT OUTPUT\n", stderr), 2;
  constexpr std::size_t most = 32;
  auto model = served::load(argv[1], most);
  std::ifstream file(argv[2], std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const std::size_t size = model.info().input.row_bytes(), row_bytes = model.info().output.row_bytes();
  std::vector<std::span<const std::byte>> rows;
  for (std::size_t at = 0; at + size <= bytes.size() && rows.size() < most; at += size)
    rows.push_back(std::as_bytes(std::span(bytes).subspan(at, size)));
  unsigned long count = 0, times = 0;
  while (std::scanf("%lu %lu", &count, &times) == 2 && count >= 1 && count <= rows.size()) {
    muster::buffer<std::byte> output(count * row_bytes);
    const auto start = muster::clock::now();
    for (unsigned long k = 0; k < times; ++k) {
      muster::serve::prediction_batch batch({rows.data(), count}, output.span());
      model.predict(batch);
    }
    const double spent = muster::seconds_since(start) / static_cast<double>(times);
    std::ofstream(argv[3], std::ios::binary)
        .write(reinterpret_cast<const char*>(output.data()), static_cast<std::streamsize>(count * row_bytes));
    std::printf("%.9f\n", spent);
    std::fflush(stdout);
  }
}
