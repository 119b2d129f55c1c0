// Sources and orders of muster behind LibTorch's DataLoader.
#include <muster/torch/dataset.hpp>

#include <set>

#include <muster/core/error.hpp>

#include "small_net.hpp"
#include "torch_catch.hpp"

TEST_CASE("a DataLoader reads a source of muster, and every rank has other samples") {
  const int world = GENERATE(1, 3);
  const std::size_t workers = GENERATE(0, 2);
  const auto size = static_cast<std::size_t>(GENERATE(20, 21));
  CAPTURE(world, workers, size);
  std::vector<std::size_t> first_epoch;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::multiset<float> seen;
    std::vector<std::size_t> order;
    for (int rank = 0; rank < world; ++rank) {
      muster::torch::dataset data(muster::data::any_record_source{test::point_source(size)});
      auto batches = torch::data::make_data_loader(data, muster::torch::sampler(size, 7, rank, world),
                                                   torch::data::DataLoaderOptions(4).workers(workers));
      for (int skipped = 0; skipped < epoch; ++skipped) {
        for ([[maybe_unused]] const auto& batch : *batches) continue;
      }
      for (const auto& batch : *batches) {
        REQUIRE(batch.data.size(1) == 4);
        REQUIRE(batch.target.scalar_type() == torch::kLong);
        for (std::int64_t k = 0; k < batch.data.size(0); ++k) {
          seen.insert(batch.data[k].sum().item<float>() * 10 +
                      static_cast<float>(batch.target[k].item<std::int64_t>()));
          order.push_back(static_cast<std::size_t>(batch.target[k].item<std::int64_t>()));
        }
      }
    }
    CHECK(seen.size() == size);
    std::multiset<float> expected;
    for (std::size_t id = 0; id < size; ++id) {
      const auto one = muster::torch::dataset(muster::data::any_record_source{test::point_source(size)}).get_batch(id);
      expected.insert(one.data[0].sum().item<float>() * 10 + static_cast<float>(one.target[0].item<std::int64_t>()));
    }
    CHECK(seen == expected);
    if (epoch == 0)
      first_epoch = order;
    else
      CHECK(order != first_epoch);
  }
}

TEST_CASE("a sampler has the order of a loader, and resumes from an archive") {
  muster::torch::sampler all(50, 3, 0, 1);
  all.reset();
  const auto order = all.next(50).value();
  auto loader = test::points(50, 50);  // shuffle(3)
  const auto batch = loader.next({0, 1});
  CHECK(std::equal(order.begin(), order.end(), batch.samples.begin(), batch.samples.end()));
  CHECK_FALSE(all.next(1).has_value());
  muster::torch::sampler saved(50, 3, 0, 1), resumed(50, 3, 0, 1);
  saved.reset();
  saved.reset();
  (void)saved.next(20);
  std::stringstream file;
  torch::serialize::OutputArchive out;
  saved.save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  resumed.load(in);
  CHECK(resumed.next(30).value() == saved.next(30).value());
  CHECK_THROWS_AS(muster::torch::sampler(5, 1, 2, 2), muster::configuration_error);
}
