// Tensors of other libraries in memory of the host, by DLPack (https://dmlc.github.io/dlpack): views of tensors that a
// library exports, and exports of memory of the program. Needs no header of DLPack.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>

namespace muster { inline namespace v0 {

/// The structs of DLPack 1, with the names and the layout of dlpack/dlpack.h. The functions below also take that
/// header's structs.
namespace dlpack {

/// The device of a tensor: type 1 is the host.
struct device {
  std::int32_t device_type, device_id;
};
/// The type of an element: a kind, and the bits of each of its lanes.
struct data_type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
/// A view of memory. Strides count elements; null strides are those of contiguous rows.
struct tensor {
  void* data;
  dlpack::device device;
  std::int32_t ndim;
  data_type dtype;
  std::int64_t *shape, *strides;
  std::uint64_t byte_offset;
};
/// The version of the structs.
struct pack_version {
  std::uint32_t major, minor;
};
/// A tensor that its holder returns to the exporter with `deleter`, DLManagedTensorVersioned.
struct managed_tensor_versioned {
  pack_version version;
  void* manager_ctx;
  void (*deleter)(managed_tensor_versioned*);
  std::uint64_t flags;
  tensor dl_tensor;
};
/// The same before version 1, DLManagedTensor.
struct managed_tensor {
  tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(managed_tensor*);
};
static_assert(sizeof(managed_tensor_versioned) == 80 && sizeof(managed_tensor) == 64 && sizeof(tensor) == 48);

/// The flag of a tensor that may only be read.
inline constexpr std::uint64_t read_only = 1;

/// A managed tensor of either form: the structs above, and those of dlpack/dlpack.h.
template <class M>
concept managed = requires(M& exported) {
  exported.dl_tensor.byte_offset;
  exported.manager_ctx;
  exported.deleter(&exported);
};

/// Returns the code of an element type.
[[nodiscard]] constexpr data_type data_type_of(dtype type) noexcept {
  const auto code = [&]() -> std::uint8_t {
    if (type == dtype::boolean) return 6;
    if (type == dtype::bfloat16) return 4;
    if (type >= dtype::float16) return 2;
    const bool is_signed = (static_cast<int>(type) - static_cast<int>(dtype::int8)) % 2 == 0;
    return is_signed ? 0 : 1;
  };
  return {code(), static_cast<std::uint8_t>(8 * size_of(type)), 1};
}

/// Returns the element type of a code; `none` if muster has no such type.
[[nodiscard]] constexpr dtype dtype_of(const data_type& type) noexcept {
  for (int candidate = static_cast<int>(dtype::boolean); candidate <= static_cast<int>(dtype::float64); ++candidate) {
    const data_type code = data_type_of(static_cast<dtype>(candidate));
    if (code.code == type.code && code.bits == type.bits && type.lanes == 1) return static_cast<dtype>(candidate);
  }
  return dtype::none;
}

/// Returns the name of a code for an error: "float32", "complex64", "4 x float32".
[[nodiscard]] inline std::string to_string(const data_type& type) {
  constexpr const char* kinds[] = {"int", "uint", "float", "pointer", "bfloat", "complex", "bool"};
  std::string name = type.code < std::size(kinds) ? kinds[type.code] : "code " + std::to_string(type.code) + " of ";
  if (type.code != 6 || type.bits != 8)
    name += std::to_string(type.bits) + (type.code < std::size(kinds) ? "" : " bits");
  return type.lanes == 1 ? name : std::to_string(type.lanes) + " x " + name;
}

/// Returns the name of a device for an error: "cuda:1".
[[nodiscard]] inline std::string to_string(const device& place) {
  constexpr const char* names[] = {"device 0", "cpu",          "cuda",   "cuda_host", "opencl",  "device 5",
                                   "device 6", "vulkan",       "metal",  "vpi",       "rocm",    "rocm_host",
                                   "ext_dev",  "cuda_managed", "oneapi", "webgpu",    "hexagon", "maia"};
  const auto type = static_cast<std::size_t>(place.device_type);
  return (type < std::size(names) ? names[type] : "device " + std::to_string(place.device_type)) + ":" +
         std::to_string(place.device_id);
}

/// Returns true for devices whose memory the host reads and writes as its own.
[[nodiscard]] constexpr bool is_on_host(const device& place) noexcept {
  return place.device_type == 1 || place.device_type == 3 ||
         place.device_type == 11;  // cpu, and pinned by CUDA or ROCm
}

/// The most dimensions of a view.
inline constexpr std::size_t most_dimensions = 16;

/// The elements of a tensor, with the interface of std::mdspan that `packed` uses. Dimensions that the tensor lacks
/// have one element.
template <class T>
class tensor_view {
 public:
  using element_type = T;  ///< the type of an element
  using reference = T&;    ///< the type of an access

  /// Refers to the elements. `strides` counts elements.
  tensor_view(T* data, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) : data_(data) {
    extents_.fill(1);
    for (std::size_t r = 0; r < shape.size(); ++r) {
      extents_[r] = static_cast<std::size_t>(shape[r]);
      strides_[r] = static_cast<std::size_t>(strides[r]);
    }
  }
  [[nodiscard]] T* data_handle() const noexcept { return data_; }
  [[nodiscard]] static constexpr std::size_t rank() noexcept { return most_dimensions; }
  [[nodiscard]] std::size_t extent(std::size_t r) const noexcept { return extents_[r]; }
  [[nodiscard]] std::size_t stride(std::size_t r) const noexcept { return strides_[r]; }

 private:
  T* data_;
  std::array<std::size_t, most_dimensions> extents_{}, strides_{};
};

}  // namespace dlpack

/// A tensor that another library has exported. The destructor returns the tensor to its exporter.
///
///     muster::dlpack_tensor tensor(exported);  // a DLManagedTensorVersioned* or a DLManagedTensor*
///     muster::allreduce(world, muster::packed(tensor.view<float>()), muster::sum);
class dlpack_tensor {
 public:
  /// Takes over `exported`, which is not null. Throws configuration_error, and returns the tensor to its exporter, for
  /// another major version than 1, memory of a device, more than 16 dimensions and negative extents.
  template <dlpack::managed M>
  explicit dlpack_tensor(M* exported)
      : owner_(exported, [](M* held) {
          if (held->deleter != nullptr) held->deleter(held);
        }) {
    if constexpr (requires { exported->version.major; }) {
      if (exported->version.major != 1) {
        throw configuration_error("a tensor cannot be used (it is exported by DLPack " +
                                  std::to_string(exported->version.major) + "." +
                                  std::to_string(exported->version.minor) +
                                  ", and muster has version 1); export it by "
                                  "version 1");
      }
      is_read_only_ = (exported->flags & dlpack::read_only) != 0;
    }
    const auto& from = exported->dl_tensor;
    type_ = {from.dtype.code, from.dtype.bits, from.dtype.lanes};
    const dlpack::device place{static_cast<std::int32_t>(from.device.device_type), from.device.device_id};
    if (!dlpack::is_on_host(place)) {
      throw configuration_error("a tensor cannot be used (its memory is on " + dlpack::to_string(place) +
                                ", and collectives use memory of the host); copy it to the host");
    }
    if (from.ndim < 0 || static_cast<std::size_t>(from.ndim) > dlpack::most_dimensions) {
      throw configuration_error("a tensor cannot be used (it has " + std::to_string(from.ndim) +
                                " dimensions, and a view has at most 16); reshape it");
    }
    shape_.assign(from.shape, from.shape + from.ndim);
    for (const std::int64_t extent : shape_) {
      if (extent < 0)
        throw configuration_error("a tensor cannot be used (it has an extent of " + std::to_string(extent) +
                                  "); correct its shape");
    }
    strides_.resize(shape_.size());
    std::int64_t stride = 1;
    for (std::size_t r = shape_.size(); r-- > 0;) {
      strides_[r] = from.strides != nullptr ? from.strides[r] : stride;
      if (from.strides == nullptr && __builtin_mul_overflow(stride, shape_[r], &stride))
        throw configuration_error("a tensor cannot be used (its elements are more than 2^63); correct its shape");
    }
    data_ = static_cast<std::byte*>(from.data) + (from.data != nullptr ? from.byte_offset : 0);
  }

  /// Returns the elements, valid as long as this object lives. Throws configuration_error for elements of another type,
  /// and unless T is const for a tensor that may only be read.
  template <class T>
  requires element<std::remove_const_t<T>>
  [[nodiscard]] dlpack::tensor_view<T> view() const {
    const dtype wanted = muster::dtype_of<std::remove_const_t<T>>();
    if (dlpack::dtype_of(type_) != wanted) {
      throw configuration_error("a tensor of " + dlpack::to_string(type_) + " cannot be used as " +
                                std::string(muster::to_string(wanted)) +
                                " (its elements have another type); convert it");
    }
    if (!std::is_const_v<T> && is_read_only_) {
      throw configuration_error(
          "a tensor cannot be written (its exporter permits only reading); use a view of const elements, or a copy");
    }
    if (reinterpret_cast<std::uintptr_t>(data_) % alignof(T) != 0) {
      throw configuration_error("a tensor cannot be used (its elements of " + std::to_string(sizeof(T)) +
                                " bytes are not aligned); copy it");
    }
    return {reinterpret_cast<T*>(data_), shape_, strides_};
  }
  /// Returns the extents.
  [[nodiscard]] const std::vector<std::int64_t>& shape() const noexcept { return shape_; }
  /// Returns the type of the elements; `none` if muster has no such type.
  [[nodiscard]] dtype type() const noexcept { return dlpack::dtype_of(type_); }

 private:
  std::shared_ptr<void> owner_;
  dlpack::data_type type_{};
  bool is_read_only_ = false;
  std::vector<std::int64_t> shape_, strides_;
  std::byte* data_ = nullptr;
};

/// Exports the elements of `owner`, which the tensor keeps until its holder calls the deleter: a `buffer`, a vector, or
/// a shared pointer to the owner of `elements`. The memory of `owner` does not move with it. `Managed` is one of
/// dlpack/dlpack.h in a program with this header. Const elements may only be read, which the form before version 1
/// cannot express. Throws configuration_error unless `shape` has as many elements as `elements`.
template <dlpack::managed Managed = dlpack::managed_tensor_versioned, class Owner, class T>
requires element<std::remove_const_t<T>>
[[nodiscard]] Managed* export_dlpack(Owner owner, std::span<T> elements, std::vector<std::int64_t> shape) {
  constexpr bool is_versioned = requires(Managed & exported) { exported.flags; };
  static_assert(is_versioned || !std::is_const_v<T>, "only DLManagedTensorVersioned can have const elements");
  std::uint64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, static_cast<std::uint64_t>(extent), &count))
      count = ~std::uint64_t{0};
    if (count == ~std::uint64_t{0}) break;
  }
  if (count != elements.size()) {
    throw configuration_error("a tensor cannot be exported (its shape does not have its " +
                              std::to_string(elements.size()) + " elements); correct the shape");
  }
  struct holder {
    Managed exported;
    Owner owner;
    std::vector<std::int64_t> shape, strides;
  };
  auto held = std::make_unique<holder>(holder{{}, std::move(owner), std::move(shape), {}});
  held->strides.resize(held->shape.size());
  std::int64_t stride = 1;
  for (std::size_t r = held->shape.size(); r-- > 0; stride *= held->shape[r]) held->strides[r] = stride;
  Managed& exported = held->exported;
  auto& to = exported.dl_tensor;
  to.data = const_cast<std::remove_const_t<T>*>(elements.data());
  to.device.device_type = static_cast<decltype(to.device.device_type)>(1);
  to.device.device_id = 0;
  to.ndim = static_cast<std::int32_t>(held->shape.size());
  const auto [code, bits, lanes] = dlpack::data_type_of(muster::dtype_of<std::remove_const_t<T>>());
  to.dtype.code = code;
  to.dtype.bits = bits;
  to.dtype.lanes = lanes;
  to.shape = held->shape.data();
  to.strides = held->strides.data();
  to.byte_offset = 0;
  exported.deleter = [](Managed* returned) { delete static_cast<holder*>(returned->manager_ctx); };
  if constexpr (is_versioned) {
    exported.version.major = 1;
    exported.version.minor = 0;
    exported.flags = std::is_const_v<T> ? dlpack::read_only : 0;
  }
  exported.manager_ctx = held.get();
  return &held.release()->exported;
}

/// Exports all elements of a buffer or vector, which the tensor owns from now on.
template <dlpack::managed Managed = dlpack::managed_tensor_versioned, class T>
[[nodiscard]] Managed* export_dlpack(buffer<T>&& owner, std::vector<std::int64_t> shape) {
  const std::span<T> elements(owner.data(), owner.size());
  return export_dlpack<Managed>(std::move(owner), elements, std::move(shape));
}
template <dlpack::managed Managed = dlpack::managed_tensor_versioned, class T>
[[nodiscard]] Managed* export_dlpack(std::vector<T>&& owner, std::vector<std::int64_t> shape) {
  const std::span<T> elements(owner.data(), owner.size());
  return export_dlpack<Managed>(std::move(owner), elements, std::move(shape));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
