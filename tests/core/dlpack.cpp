// Tensors of other libraries, by the layout of DLPack's structs.
#include <muster/core/dlpack.hpp>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <muster/comm/collectives/packed.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"

namespace {

// The structs as dlpack/dlpack.h has them: other types than muster's, with an enumeration for the device.
enum device_type : std::int32_t { host = 1, cuda = 2 };
struct DLDevice {
  ::device_type device_type;
  std::int32_t device_id;
};
struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};
struct DLPackVersion {
  std::uint32_t major, minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor dl_tensor;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

// An exporter whose tensors count their returns.
template <class M>
struct exporter {
  explicit exporter(std::vector<std::int64_t> shape_in, std::vector<std::int64_t> strides_in = {})
      : shape(std::move(shape_in)), strides(std::move(strides_in)) {
    tensor.dl_tensor = {memory.data(),
                        {host, 0},
                        static_cast<std::int32_t>(shape.size()),
                        {2, 32, 1},
                        shape.data(),
                        strides.empty() ? nullptr : strides.data(),
                        0};
    tensor.manager_ctx = this;
    tensor.deleter = [](M* released) { ++static_cast<exporter*>(released->manager_ctx)->returned; };
    if constexpr (requires { tensor.version; }) tensor.version = {1, 1};
  }
  std::vector<float> memory = std::vector<float>(4096);
  std::vector<std::int64_t> shape, strides;
  int returned = 0;
  M tensor{};
};
using versioned = exporter<DLManagedTensorVersioned>;

std::string refusal(versioned& from) {
  try {
    const muster::dlpack_tensor tensor(&from.tensor);
    (void)tensor.view<float>();
  } catch (const muster::configuration_error& e) {
    CHECK(from.returned == 1);
    return e.what();
  }
  return "nothing is refused";
}

}  // namespace

TEMPLATE_TEST_CASE("the elements of a tensor are those at its strides", "", DLManagedTensorVersioned, DLManagedTensor) {
  constexpr std::uint64_t seed = 20261201;
  for (std::uint64_t c = 0; c < 300; ++c) {
    muster::random_stream random(seed, c);
    INFO("seed " << seed << ", case " << c);
    std::vector<std::int64_t> shape(random.below(4)), strides(shape.size());
    std::int64_t reach = 1;
    for (std::size_t r = shape.size(); r-- > 0;) {
      shape[r] = random.below(9) == 0 ? 0 : static_cast<std::int64_t>(1 + random.below(5));
      strides[r] = reach + static_cast<std::int64_t>(random.below(3));
      reach += std::max<std::int64_t>(shape[r] - 1, 0) * strides[r];
    }
    const bool has_strides = random.below(4) != 0;
    exporter<TestType> from(shape, has_strides ? strides : std::vector<std::int64_t>{});
    std::iota(from.memory.begin(), from.memory.end(), 0.0f);
    from.tensor.dl_tensor.byte_offset = 4 * random.below(9);
    const auto offset = static_cast<std::int64_t>(from.tensor.dl_tensor.byte_offset / 4);
    std::vector<float> expected;  // the elements by index, the last index fastest
    std::int64_t count = 1;
    for (const auto extent : shape) count *= extent;
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t place = offset, rest = i;
      std::int64_t contiguous = 1;
      for (std::size_t r = shape.size(); r-- > 0;) {
        place += rest % shape[r] * (has_strides ? strides[r] : contiguous);
        rest /= shape[r];
        contiguous *= shape[r];
      }
      expected.push_back(static_cast<float>(place));
    }
    {
      const muster::dlpack_tensor tensor(&from.tensor);
      CHECK(tensor.shape() == shape);
      CHECK(tensor.type() == muster::dtype::float32);
      const muster::packed elements(tensor.view<float>());
      CHECK(std::vector<float>(elements.begin(), elements.end()) == expected);
      if (!has_strides) CHECK(elements.data() == from.memory.data() + offset);
      for (float& element : elements) element += 5000;
      CHECK(from.returned == 0);
    }
    CHECK(from.returned == 1);
    for (std::size_t i = 0; i < from.memory.size(); ++i) {
      const auto before = static_cast<float>(i);
      const bool is_element = std::find(expected.begin(), expected.end(), before) != expected.end();
      REQUIRE(from.memory[i] == before + (is_element ? 5000 : 0));
    }
  }
}

TEST_CASE("a tensor that cannot be used is returned to its exporter, with the reason") {
  versioned on_device({2});
  on_device.tensor.dl_tensor.device = {cuda, 3};
  CHECK(
      refusal(on_device) ==
      "a tensor cannot be used (its memory is on cuda:3, and collectives use memory of the host); copy it to the host");
  versioned later({2});
  later.tensor.version = {2, 0};
  later.tensor.dl_tensor.ndim = 1 << 30;  // another version may have another layout: nothing else is read
  CHECK(refusal(later) ==
        "a tensor cannot be used (it is exported by DLPack 2.0, and muster has version 1); export it by version 1");
  versioned read_only({2});
  read_only.tensor.flags = 1;
  CHECK(refusal(read_only) ==
        "a tensor cannot be written (its exporter permits only reading); use a view of const "
        "elements, or a copy");
  versioned doubles({2});
  doubles.tensor.dl_tensor.dtype = {2, 64, 1};
  CHECK(refusal(doubles) ==
        "a tensor of float64 cannot be used as float32 (its elements have another type); convert it");
  versioned lanes({2});
  lanes.tensor.dl_tensor.dtype = {2, 32, 4};
  CHECK_THAT(refusal(lanes), contains("a tensor of 4 x float32 cannot be used as float32"));
  versioned complex({2});
  complex.tensor.dl_tensor.dtype = {5, 64, 1};
  CHECK_THAT(refusal(complex), contains("a tensor of complex64 cannot"));
  versioned code({2});
  code.tensor.dl_tensor.dtype = {12, 8, 1};
  CHECK_THAT(refusal(code), contains("a tensor of code 12 of 8 bits cannot"));
  versioned odd({2});
  odd.tensor.dl_tensor.byte_offset = 2;
  CHECK_THAT(refusal(odd), contains("its elements of 4 bytes are not aligned"));
  versioned negative({2, -3});
  CHECK_THAT(refusal(negative), contains("it has an extent of -3"));
  versioned many(std::vector<std::int64_t>(17, 1));
  CHECK_THAT(refusal(many), contains("it has 17 dimensions, and a view has at most 16"));

  versioned reader({3});
  reader.tensor.flags = 1;
  const muster::dlpack_tensor tensor(&reader.tensor);
  CHECK(muster::packed(tensor.view<const float>()).data() == reader.memory.data());
}

TEST_CASE("every element type has DLPack's code, and no other") {
  int found = 0;
  for (unsigned code = 0; code < 20; ++code) {
    for (unsigned bits = 0; bits < 256; ++bits) {
      const muster::dlpack::data_type type{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
      const auto element_type = muster::dlpack::dtype_of(type);
      if (element_type == muster::dtype::none) continue;
      ++found;
      CHECK(muster::size_of(element_type) * 8 == bits);
      CHECK(muster::dlpack::to_string(type) == muster::to_string(element_type));
    }
  }
  CHECK(found == 13);  // bool, 8 integers, float16, bfloat16, float32, float64
}

TEST_CASE("an exported tensor owns its memory until its holder returns it") {
  const auto alive = std::make_shared<std::vector<double>>(6, 1.5);
  auto* const shared = muster::export_dlpack<DLManagedTensorVersioned>(alive, std::span<const double>(*alive), {2, 3});
  CHECK(alive.use_count() == 2);
  CHECK(shared->dl_tensor.data == alive->data());
  CHECK(shared->dl_tensor.dtype.bits == 64);
  CHECK(shared->dl_tensor.device.device_type == host);
  CHECK((shared->flags == 1 && shared->version.major == 1));
  {
    const muster::dlpack_tensor back(shared);
    const muster::packed elements(back.view<const double>());
    CHECK(std::vector<double>(elements.begin(), elements.end()) == *alive);
    CHECK(back.shape() == std::vector<std::int64_t>{2, 3});
  }
  CHECK(alive.use_count() == 1);

  muster::buffer<muster::bfloat16> values(12);
  const auto* const place = values.data();
  auto* const exported = muster::export_dlpack(std::move(values), {3, 4});
  CHECK(exported->dl_tensor.data == place);
  CHECK((exported->dl_tensor.strides[0] == 4 && exported->dl_tensor.strides[1] == 1 && exported->flags == 0));
  CHECK(muster::dlpack_tensor(exported).type() == muster::dtype::bfloat16);

  auto* const old = muster::export_dlpack<DLManagedTensor>(std::vector<std::int32_t>{7}, {});
  CHECK((old->dl_tensor.ndim == 0 && *static_cast<std::int32_t*>(old->dl_tensor.data) == 7));
  old->deleter(old);

  using shape = std::vector<std::int64_t>;
  for (const auto& wrong : {shape{5}, shape{-1, -6}, shape{std::int64_t{1} << 62, 8}, shape{}})
    CHECK_THROWS_WITH((void)muster::export_dlpack(std::vector<float>(6), wrong),
                      contains("its shape does not have its 6 elements"));
}
