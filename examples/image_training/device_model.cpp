#include "device_model.hpp"

#include <muster/core/error.hpp>

#ifndef NN_DEVICE

namespace images {

std::unique_ptr<device_model> make_device_model(muster::context&, muster::group&, const options&,
                                                const model_description&, nn::network<float>&, const muster::arena&) {
  throw muster::configuration_error(
      "--device cuda is not in this build (CUDA or NCCL was not found when it was configured); build with the preset "
      "cuda, or use --device cpu");
}

}  // namespace images

#else

#include <optional>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/codec/compression.hpp>
#include <muster/core/float16.hpp>
#include <muster/ps/ps_settings.hpp>
#include <muster/train/device/device_arena.hpp>
#include <muster/train/device/gradients.hpp>

#include "assemble_model.hpp"
#include "device/network.hpp"

namespace images {
namespace {

constexpr muster::seconds for_copies{60};

/// Returns the number of ranks on this host that the launcher, or this process, started.
int ranks_here(muster::context& context, muster::group& world) {
  return context.launcher().size > 1 ? context.launcher().local_size : world.size();
}

/// Returns true if each rank can have its own device. Collective. NCCL requires one rank for each device, and
/// ranks that join and leave may have to share a device.
bool each_has_a_device(muster::context& context, muster::group& world) {
  const bool enough = ranks_here(context, world) <= muster::device_count();
  return !context.elastic() && world.size() > 1 && muster::allreduce(world, enough ? 1 : 0, muster::min) == 1;
}

template <class A>
class on_device final : public device_model {
 public:
  on_device(muster::context& context, muster::group& world, const options& chosen, const model_description& description,
            nn::network<float>& host, const muster::arena& start)
      : precision_(chosen.precision),
        compression_(muster::parse_compression(context.configuration().value(muster::setting::compress))),
        alone_(world.size() == 1 && !context.elastic()),
        arena_(host.shapes(), stream_),
        net_(description.input,
             chosen.precision == "float32" ? nn::device::multiplication::float32 : nn::device::multiplication::tf32,
             stream_) {
    assemble_model(net_, description);
    net_.bind(arena_, host.statistics());
    arena_.upload(start, muster::deadline_after(for_copies));
    optimizer_.emplace(muster::make_optimizer(arena_, chosen.optimizer));
    if (each_has_a_device(context, world)) devices_.emplace(world);
  }

  std::string description() const override {
    const std::string sums = devices_ ? ", gradients summed by NCCL" : ", gradients summed by way of the host";
    return "cuda (" + precision_ + ")" + (alone_ ? "" : sums);
  }
  std::unique_ptr<muster::gradient_backend> gradients() override {
    using enum muster::compression_method;
    const auto method = compression_.method;
    if (method == powersgd && devices_) return muster::powersgd_on(arena_, *devices_, compression_.rank);
    if (method != none && method != float16 && method != bfloat16) {
      throw muster::configuration_error("--compress " + muster::to_string(compression_) +
                                        " cannot be used with --device cuda (devices have float16 and bfloat16, and "
                                        "powersgd where NCCL sums the gradients); use a supported method");
    }
    const auto sent = method == float16    ? muster::dtype::float16
                      : method == bfloat16 ? muster::dtype::bfloat16
                                           : muster::dtype::float32;
    return devices_ ? muster::gradients_on(arena_, *devices_, sent) : muster::gradients_on(arena_, sent);
  }
  muster::any_optimizer& optimizer() override { return *optimizer_; }
  void meet(muster::group& ranks) override {
    if (devices_) devices_->rebuild(ranks);
  }
  void train(std::span<const float> images, std::span<const float> labels, double scale, const nn::pass& now) override {
    muster::clear(arena_.gradients(), stream_);
    if (!alone_) return net_.train(images, labels, scale, now);
    // No rank waits for a gradient, so that the whole pass is started as one unit.
    auto whole = now;
    whole.ready = {};
    net_.train(images, labels, scale, whole);
    for (std::size_t each = 0; each < arena_.shapes().size(); ++each) now.ready(each);
  }
  nn::totals finish() override { return net_.finish_training(); }
  std::span<const float> predict(std::span<const float> images, std::size_t count) override {
    return net_.predict(images, count);
  }
  void download(muster::arena& to) override { arena_.download(to, muster::deadline_after(for_copies)); }

 private:
  std::string precision_;
  muster::compression compression_;
  bool alone_;
  muster::device_stream stream_;
  muster::device_arena arena_;
  nn::device::network<A> net_;
  std::optional<muster::any_optimizer> optimizer_;
  std::optional<muster::nccl::communicator> devices_;
};

}  // namespace

std::unique_ptr<device_model> make_device_model(muster::context& context, muster::group& world, const options& chosen,
                                                const model_description& description, nn::network<float>& host,
                                                const muster::arena& start) {
  const int devices = muster::device_count();
  if (devices == 0) {
    throw muster::configuration_error(
        "--device cuda finds no device (by cudaGetDeviceCount); look at nvidia-smi, or use --device cpu");
  }
  const int mine = context.launcher().size > 1 ? context.launcher().local_rank : world.rank();
  muster::use_device(mine % devices);
  if (chosen.precision == "bfloat16")
    return std::make_unique<on_device<muster::bfloat16> >(context, world, chosen, description, host, start);
  return std::make_unique<on_device<float> >(context, world, chosen, description, host, start);
}

}  // namespace images

#endif
