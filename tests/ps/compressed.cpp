// Pushes through codecs, and sparse tables with bounds.
#include <muster/ps/job.hpp>

#include <cmath>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"
#include "core/codec/trim.hpp"
#include "jobs.hpp"

TEST_CASE("what compressed pushes leave out comes with later ones, and every server decodes the same", "[slow]") {
  const auto over = GENERATE(from_range(fabrics()));
  const std::string codec_name =
      GENERATE("none", "float16", "bfloat16", "qsgd8", "sign", "topk:0.1", "stride:10", "trim:2");
  const auto codec = muster::parse_compression(codec_name);
  INFO(over << ", " << codec_name);
  constexpr std::size_t size = 20000;
  constexpr int steps = 40;
  const auto options =
      patient({.tables = {{.name = "w", .size = size}}, .servers = 2, .replicas = 1, .compress = codec});
  run_job(over, 2, options, [&](ps::job& job, muster::group& workers) {
    auto& tables = job.tables();
    const bool biased = muster::any_codec(codec).is_biased();
    // The oracle: each worker's own encoder with its residual, for the whole slice of a range. The remaining residual
    // is small compared with the sum of the pushes.
    muster::random_stream draw(5, static_cast<std::uint64_t>(workers.rank()));
    std::vector<float> gradient(size), found(size);
    for (auto& value : gradient) value = static_cast<float>(draw.normal());
    for (int step = 0; step < steps; ++step) tables.push(0, gradient);
    const double raw = static_cast<double>(steps) * static_cast<double>(size) * sizeof(float);
    if (codec_name == "none") require(static_cast<double>(tables.bytes_pushed()) == raw, "all bytes are sent");
    if (codec_name != "none") require(static_cast<double>(tables.bytes_pushed()) < 0.85 * raw, "fewer bytes are sent");
    std::vector<float> sums(size);
    for (std::size_t i = 0; i < size; ++i) sums[i] = gradient[i] * steps;
    muster::allreduce(workers, std::span(sums), muster::sum);
    tables.pull(0, found);
    double off = 0, all = 0;
    for (std::size_t i = 0; i < size; ++i) {
      off += std::pow(double{found[i]} - double{sums[i]}, 2);
      all += std::pow(double{sums[i]}, 2);
    }
    require(std::sqrt(off / all) < (codec_name == "none" ? 1e-6
                                    : biased             ? 0.45
                                                         : 0.01),
            "the sums, but for what is under way");
    muster::barrier(workers);
  });
}

TEST_CASE("a bounded sparse table keeps what was pushed to last, at every server of a chain") {
  const auto over = GENERATE(from_range(fabrics()));
  const std::vector<ps::table_spec> specs = {{.name = "counted", .initial = 7, .ranges = 1, .most_rows = 80},
                                             {.name = "aged", .ranges = 1, .most_age = 10}};
  run_job(over, 1, patient({.tables = specs, .servers = 2, .replicas = 1}), [&](ps::job& job, muster::group&) {
    auto& tables = job.tables();
    const std::vector<float> ones = {1.0f};
    std::vector<float> found(1);
    for (std::uint64_t key = 0; key < 1000; ++key) {
      for (std::uint32_t table : {0u, 1u}) tables.push(table, std::span(&key, 1), ones);
    }
    std::size_t remaining = 0;
    for (std::uint64_t key = 0; key < 1000; ++key) {
      tables.pull(0, std::span(&key, 1), found);
      remaining += found[0] == 8 ? 1 : 0;
      require(found[0] == 8 || key < 930, "the newest are kept");
      tables.pull(1, std::span(&key, 1), found);
      require(found[0] == (key >= 989 ? 1.0f : 0.0f), "a row is kept for ten pushes");
    }
    require(remaining <= 80 && remaining >= 70, "so many are kept");
  });
}

TEST_CASE("rows are pushed compressed by methods that leave nothing out") {
  const auto over = GENERATE(from_range(fabrics()));
  const auto consistency = GENERATE("async", "bulk");
  const std::vector<ps::table_spec> sparse = {{.name = "rows", .width = 64}};
  const auto options = patient({.tables = sparse,
                                .servers = 2,
                                .consistency_model = ps::parse_consistency(consistency),
                                .compress = muster::parse_compression("qsgd8")});
  run_job(over, 2, options, [&](ps::job& job, muster::group& workers) {
    auto& tables = job.tables();
    const std::vector<std::uint64_t> keys = {3, 1000000007, 5};
    std::vector<float> rows(3 * 64, 0.5f), found(3 * 64);
    for (int i = 0; i < 20; ++i) tables.push(0, keys, rows);
    tables.next_clock();
    muster::barrier(workers);
    tables.pull(0, keys, found);
    for (const float value : found) require(std::abs(value - 20.0f) < 0.2f, "the rows");
    require(tables.bytes_pushed() < 20 * 3 * (8 + 64 * 2), "fewer bytes");
    muster::barrier(workers);
  });
}
