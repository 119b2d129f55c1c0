// What a model offers to be served: its tensors, and a prediction of a batch.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/dtype.hpp>

namespace muster { inline namespace v0 { namespace serve {

/// What a row of a request or of an answer is.
struct tensor_info {
  std::string name;
  dtype type = dtype::float32;
  std::vector<std::size_t> shape{};  ///< of a row, row-major; empty for one number
  bool is_bytes = false;             ///< a row is any number of bytes, such as a JPEG; type and shape say nothing

  /// Numbers of a row.
  [[nodiscard]] std::size_t elements() const noexcept {
    std::size_t all = 1;
    for (const std::size_t extent : shape) all *= extent;
    return all;
  }
  /// Bytes of a row; 0: any number of them.
  [[nodiscard]] std::size_t row_bytes() const noexcept { return is_bytes ? 0 : elements() * size_of(type); }
};

/// What a model takes and gives.
struct model_info {
  std::string platform;  ///< what made the model: "muster"
  tensor_info input;
  tensor_info output;                  ///< not of bytes
  std::vector<std::string> classes{};  ///< a name for each number of the output; empty: there are no names
};

/// Rows of several requests, to be predicted together.
class prediction_batch {
 public:
  /// `output` has a row of the output for each of `rows`, one behind another.
  prediction_batch(std::span<const std::span<const std::byte>> rows, std::span<std::byte> output)
      : rows_(rows), output_(output) {}

  [[nodiscard]] std::size_t size() const noexcept { return rows_.size(); }
  /// As it came: not aligned, and of exactly row_bytes() bytes where these are fixed.
  [[nodiscard]] std::span<const std::byte> row(std::size_t k) const noexcept { return rows_[k]; }
  /// All rows of the output; aligned to a cache line.
  [[nodiscard]] std::span<std::byte> output() const noexcept { return output_; }

  /// Row k cannot be predicted: its request is answered with `why`, and the other requests are not concerned.
  void refuse(std::size_t k, std::string why) { refused_.emplace_back(k, std::move(why)); }
  [[nodiscard]] const std::vector<std::pair<std::size_t, std::string>>& refused() const noexcept { return refused_; }

 private:
  std::span<const std::span<const std::byte>> rows_;
  std::span<std::byte> output_;
  std::vector<std::pair<std::size_t, std::string>> refused_;
};

/// A model that is served. Used by one thread at a time.
///
/// - info(): the same for all of its life.
/// - predict(batch): fills batch.output(), or refuses rows. What it throws fails all requests of the batch.
template <class P>
concept predictor = std::movable<P> && requires(P& model, const P& same, prediction_batch& batch) {
  { same.info() } -> std::convertible_to<const model_info&>;
  model.predict(batch);
};

/// A predictor that prepares each row alone, such as a JPEG that is decoded, in a thread beside the one that predicts.
///
/// - prepared_bytes(): of a prepared row; 0: it prepares none.
/// - prepare(row, to): what it throws as data_error refuses the row.
/// - predict_prepared(batch): as predict(), of rows that were prepared.
template <class P>
concept preparing_predictor = predictor<P> &&
    requires(P& model, std::span<const std::byte> row, std::span<std::byte> to, prediction_batch& batch) {
  { model.prepared_bytes() } -> std::convertible_to<std::size_t>;
  model.prepare(row, to);
  model.predict_prepared(batch);
};

/// Any predictor, chosen at run time: one indirect call a batch.
class any_predictor {
 public:
  /// Owns the model.
  template <class P>
  requires(!std::same_as<P, any_predictor> && predictor<P>) any_predictor(P model)  // NOLINT: meant to convert
      : info_(model.info()) {
    const auto held = std::make_shared<P>(std::move(model));
    predict_ = [held](prediction_batch& batch) { held->predict(batch); };
    if constexpr (preparing_predictor<P>) {
      prepared_bytes_ = held->prepared_bytes();
      prepare_ = [held](std::span<const std::byte> row, std::span<std::byte> to) { held->prepare(row, to); };
      predict_prepared_ = [held](prediction_batch& batch) { held->predict_prepared(batch); };
    }
  }
  any_predictor(any_predictor&&) noexcept = default;
  any_predictor& operator=(any_predictor&&) noexcept = default;

  /// As predictor has them.
  [[nodiscard]] const model_info& info() const noexcept { return info_; }
  void predict(prediction_batch& batch) { predict_(batch); }
  /// As preparing_predictor has them; 0 bytes where the model is none.
  [[nodiscard]] std::size_t prepared_bytes() const noexcept { return prepared_bytes_; }
  void prepare(std::span<const std::byte> row, std::span<std::byte> to) { prepare_(row, to); }
  void predict_prepared(prediction_batch& batch) { predict_prepared_(batch); }

 private:
  model_info info_;
  std::size_t prepared_bytes_ = 0;
  std::function<void(std::span<const std::byte>, std::span<std::byte>)> prepare_;
  std::function<void(prediction_batch&)> predict_prepared_;
  std::function<void(prediction_batch&)> predict_;
};
static_assert(predictor<any_predictor>);

}}}  // namespace muster::v0::serve
