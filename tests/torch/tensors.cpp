// Batches as tensors.
#include <muster/torch/tensors.hpp>

#include <cstring>

#include <muster/core/error.hpp>

#include "torch_catch.hpp"

using muster::torch::tensors;

namespace {

// A batch of three records with these fields, whose bytes count up.
struct made_batch {
  explicit made_batch(std::vector<muster::data::record_field> fields, std::vector<float> labels = {0, 2, 1})
      : values(std::move(labels)) {
    schema.fields = std::move(fields);
    schema.labels.assign(values.size() / 3, "label");
    bytes.resize(3 * schema.record_bytes());
    for (std::size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<std::byte>(k);
    batch.samples = ids;
    batch.global_size = 3;
    batch.labels = values;
    batch.bytes = bytes;
    batch.schema = &schema;
  }
  muster::data::record_schema schema;
  std::vector<muster::sample_id> ids{5, 3, 4};
  std::vector<float> values;
  std::vector<std::byte> bytes;
  muster::minibatch batch;
};

}  // namespace

TEST_CASE("a batch is a tensor in the loader's memory, with the labels as classes") {
  const auto type = GENERATE(muster::dtype::boolean, muster::dtype::int8, muster::dtype::uint8, muster::dtype::int16,
                             muster::dtype::int32, muster::dtype::int64, muster::dtype::float16,
                             muster::dtype::bfloat16, muster::dtype::float32, muster::dtype::float64);
  const made_batch made({{"x", type, {2, 4}}});
  const auto [input, target] = tensors(made.batch);
  CHECK(input.data_ptr() == made.bytes.data());
  CHECK(input.sizes() == at::IntArrayRef({3, 2, 4}));
  CHECK(input.is_contiguous());
  CHECK(static_cast<std::size_t>(input.element_size()) == muster::size_of(type));
  CHECK(std::memcmp(input[1].data_ptr(), made.batch.record(1).data(), made.batch.record(1).size()) == 0);
  CHECK(at::equal(target, at::tensor({0, 2, 1}, at::kLong)));
}

TEST_CASE("labels may be values, or several for a sample") {
  const made_batch values({{"x", muster::dtype::float32, {2}}}, {0.5f, -1.0f, 2.0f});
  CHECK(at::equal(tensors<float>(values.batch).target, at::tensor({0.5f, -1.0f, 2.0f})));
  CHECK_THROWS_WITH(tensors(values.batch), contains("the label 0.5") && contains("of sample 5 is no class"));
  const made_batch several({{"x", muster::dtype::float32, {2}}}, {0, 1, 2, 3, 4, 5});
  CHECK(at::equal(tensors(several.batch).target, at::arange(6, at::kLong).reshape({3, 2})));
  const made_batch none({{"x", muster::dtype::float32, {2}}}, {});
  CHECK_FALSE(tensors(none.batch).target.defined());
}

TEST_CASE("the fields of a record are views") {
  const made_batch made({{"image", muster::dtype::uint8, {2, 2}}, {"weight", muster::dtype::float32, {}}});
  CHECK_THROWS_WITH(tensors(made.batch), contains("its records have several fields"));
  const auto image = muster::torch::field(made.batch, "image");
  const auto weight = muster::torch::field(made.batch, "weight");
  CHECK(at::equal(image[2].flatten(), at::tensor({16, 17, 18, 19}, at::kByte)));
  CHECK(weight.sizes() == at::IntArrayRef({3}));
  float second = 0;
  std::memcpy(&second, made.bytes.data() + 12, sizeof second);
  CHECK(weight[1].item<float>() == second);
  CHECK_THROWS_WITH(muster::torch::field(made.batch, "mask"), contains("has no field 'mask'"));
  const made_batch odd({{"flag", muster::dtype::uint8, {}}, {"x", muster::dtype::float32, {2}}});
  CHECK_THROWS_WITH(muster::torch::field(odd.batch, "x"), contains("are not aligned in records of 9 bytes"));
}

TEST_CASE("a part without samples is an empty tensor, and a batch without tensors is refused") {
  made_batch made({{"x", muster::dtype::float32, {2, 3}}});
  const auto empty = made.batch.part({3, 3});
  CHECK(tensors(empty).input.sizes() == at::IntArrayRef({0, 2, 3}));
  CHECK(tensors(empty).target.numel() == 0);
  CHECK_THROWS_AS(tensors(muster::minibatch{}), muster::mismatch_error);
  made.schema.form = muster::data::record_form::sparse;
  CHECK_THROWS_WITH(tensors(made.batch), contains("has no tensors"));
  const made_batch unsigned_numbers({{"x", muster::dtype::uint32, {2}}});
  CHECK_THROWS_WITH(tensors(unsigned_numbers.batch), contains("uint32 (LibTorch has no such tensors)"));
}
