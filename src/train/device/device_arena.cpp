#include <muster/train/device/device_arena.hpp>

#include <algorithm>
#include <utility>

#include <muster/core/device/kernels.hpp>
#include <muster/core/error.hpp>
#include <muster/train/train_settings.hpp>

#include <muster/train/optimizers/optimizer_named.hpp>
#include "device_gradients.hpp"

namespace muster { inline namespace v0 {
namespace {

constexpr seconds copy_timeout{60};

}  // namespace

device_arena::device_arena(std::vector<tensor_shape> shapes, device_stream_ref stream)
    : arena_in(std::move(shapes), [](std::size_t size) { return device_buffer<float>(size); }), stream_(stream) {}

void device_arena::upload(const arena& source, clock::time_point deadline) {
  copy(source.parameters(), parameters(), stream_);
  wait_for(stream_, deadline);
}

void device_arena::download(arena& destination, clock::time_point deadline) {
  copy(parameters(), destination.parameters(), stream_);
  wait_for(stream_, deadline);
}

void detail::add_array(state_parts& parts, const std::string& name, state_kind kind,
                       std::function<device_span<float>()> array, device_stream_ref stream) {
  parts.add(
      name, kind,
      [array, stream] {
        std::vector<std::byte> bytes(array().size_bytes());
        copy(array(), std::span(reinterpret_cast<float*>(bytes.data()), array().size()), stream);
        wait_for(stream, deadline_after(copy_timeout));
        return bytes;
      },
      [array, stream, name](std::span<const std::byte> bytes) {
        if (bytes.size() != array().size_bytes()) {
          throw configuration_error("the " + name + " cannot be restored (the state has " +
                                    std::to_string(bytes.size()) + " bytes instead of " +
                                    std::to_string(array().size_bytes()) + "); use the model that saved it");
        }
        std::vector<float> floats(array().size());  // aligned, unlike the received bytes
        std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<std::byte*>(floats.data()));
        copy(std::span<const float>(floats), array(), stream);
        wait_for(stream, deadline_after(copy_timeout));
      });
}

void device_arena::add_array(state_parts& parts, const std::string& name, device_span<float> array, state_kind kind,
                             rollback_policy) {
  detail::add_array(
      parts, name, kind, [array] { return array; }, stream_);
}

template class optimizer_of<sgd_step<float>, device_arena>;
template class optimizer_of<adam_step<float>, device_arena>;

any_optimizer make_optimizer(device_arena& tensors, std::string_view text) {
  return detail::parse_optimizer(tensors, text);
}
any_optimizer make_optimizer(device_arena& tensors, const settings& configuration) {
  return make_optimizer(tensors, configuration.value(setting::optimizer));
}

}}  // namespace muster::v0
