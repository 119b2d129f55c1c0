// A model that an NVIDIA device trains.
#pragma once

#include <memory>
#include <span>
#include <string>

#include <muster/comm/context.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/sync/gradient_backend.hpp>

#include "loss.hpp"
#include "options.hpp"
#include "saved_model.hpp"

namespace images {

/// The parameters, their gradients and the optimizer's state of a model, and its passes, on this rank's device. The
/// host's network of the same model has the statistics of batch normalisation, and is where the parameters start and
/// where they go to be saved.
class device_model {
 public:
  device_model() = default;
  device_model(const device_model&) = delete;
  device_model& operator=(const device_model&) = delete;
  virtual ~device_model() = default;

  /// "cuda (tf32), gradients summed by NCCL".
  [[nodiscard]] virtual std::string description() const = 0;
  /// For the training, compressed by `--compress`; once. Throws muster::configuration_error for a method that devices
  /// do not have.
  [[nodiscard]] virtual std::unique_ptr<muster::gradient_backend> gradients() = 0;
  [[nodiscard]] virtual muster::any_optimizer& optimizer() = 0;
  /// Collective: these are the ranks from now on.
  virtual void meet(muster::group& ranks) = 0;
  /// Puts a pass over a batch on the device, which sets the gradients, of scale * the loss; tells `now.ready` of all.
  virtual void train(std::span<const float> images, std::span<const float> labels, double scale,
                     const nn::pass& now) = 0;
  /// Waits for it.
  virtual nn::totals finish() = 0;
  /// The logits of so many images; valid until the next call.
  virtual std::span<const float> predict(std::span<const float> images, std::size_t count) = 0;
  /// The parameters go to the host's arena.
  virtual void download(muster::arena& to) = 0;
};

/// Collective over the ranks that the job starts with. `start` has the parameters of `host`. Throws
/// muster::configuration_error where the build or the machine has no device, or the device does not have all layers of
/// the model.
std::unique_ptr<device_model> make_device_model(muster::context& context, muster::group& world, const options& chosen,
                                                const model_description& what, nn::network<float>& host,
                                                const muster::arena& start);

}  // namespace images
