// A model that is trained on an NVIDIA device.
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
/// host's network of the same model holds the statistics of batch normalisation. It provides the initial parameters and
/// receives the trained parameters, which are then saved.
class device_model {
 public:
  device_model() = default;
  device_model(const device_model&) = delete;
  device_model& operator=(const device_model&) = delete;
  virtual ~device_model() = default;

  /// Returns a text such as "cuda (tf32), gradients summed by NCCL".
  [[nodiscard]] virtual std::string description() const = 0;
  /// Returns the gradient backend for the training, compressed by `--compress`. Called once. Throws
  /// muster::configuration_error for a method that devices do not support.
  [[nodiscard]] virtual std::unique_ptr<muster::gradient_backend> gradients() = 0;
  [[nodiscard]] virtual muster::any_optimizer& optimizer() = 0;
  /// Sets the ranks for the following calls. Collective.
  virtual void meet(muster::group& ranks) = 0;
  /// Puts a pass over a batch on the device, which sets the gradients of scale * the loss. Calls `now.ready` with all
  /// parameters.
  virtual void train(std::span<const float> images, std::span<const float> labels, double scale,
                     const nn::pass& now) = 0;
  /// Waits for the pass.
  virtual nn::totals finish() = 0;
  /// Returns the logits of a number of images; valid until the next call.
  virtual std::span<const float> predict(std::span<const float> images, std::size_t count) = 0;
  /// Copies the parameters to the host's arena.
  virtual void download(muster::arena& to) = 0;
};

/// Returns the model on this rank's device. Collective over the initial ranks of the job. `start` has the parameters of
/// `host`. Throws muster::configuration_error if the build or the machine has no device, or if the device does not
/// support all layers of the model.
std::unique_ptr<device_model> make_device_model(muster::context& context, muster::group& world, const options& chosen,
                                                const model_description& description, nn::network<float>& host,
                                                const muster::arena& start);

}  // namespace images
