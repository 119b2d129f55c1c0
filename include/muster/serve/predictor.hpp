// The interface of a served model: its tensors, and the prediction of a batch.
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

/// The name, type and shape of a row in a request or reply.
struct tensor_info {
  std::string name;
  dtype type = dtype::float32;
  std::vector<std::size_t> shape{};  ///< shape of a row, row-major; empty for a single number
  bool is_bytes = false;  ///< true if a row is any number of bytes, such as a JPEG; `type` and `shape` are unused then
  bool takes_files = false;  ///< true if a request may have files instead of rows (see file_predictor)

  /// Returns the number of elements in a row.
  [[nodiscard]] std::size_t elements() const noexcept {
    std::size_t count = 1;
    for (const std::size_t extent : shape) count *= extent;
    return count;
  }
  /// Returns the number of bytes in a row, or 0 if it is not fixed.
  [[nodiscard]] std::size_t row_bytes() const noexcept { return is_bytes ? 0 : elements() * size_of(type); }
};

/// The description of a model's input and output.
struct model_info {
  std::string platform;  ///< software that made the model: "muster"
  tensor_info input;
  tensor_info output;                  ///< output tensor; its rows have a fixed size
  std::vector<std::string> classes{};  ///< a name for each number in the output; empty: no names
};

/// The rows of several requests, which are predicted together.
class prediction_batch {
 public:
  /// Describes a batch. `output` has space for one output row for each row of `rows`, one after another.
  prediction_batch(std::span<const std::span<const std::byte>> rows, std::span<std::byte> output)
      : rows_(rows), output_(output) {}

  [[nodiscard]] std::size_t size() const noexcept { return rows_.size(); }
  /// Returns the bytes of input row k as received. The bytes are not aligned. Their number is row_bytes() if that is
  /// fixed.
  [[nodiscard]] std::span<const std::byte> row(std::size_t k) const noexcept { return rows_[k]; }
  /// Returns all output rows, aligned to a cache line.
  [[nodiscard]] std::span<std::byte> output() const noexcept { return output_; }

  /// Reports that row k cannot be predicted. The row's request fails with `reason`; other requests are not affected.
  void refuse(std::size_t k, std::string reason) { refused_.emplace_back(k, std::move(reason)); }
  [[nodiscard]] const std::vector<std::pair<std::size_t, std::string>>& refused() const noexcept { return refused_; }

 private:
  std::span<const std::span<const std::byte>> rows_;
  std::span<std::byte> output_;
  std::vector<std::pair<std::size_t, std::string>> refused_;
};

/// A served model. A single thread at a time uses it.
///
/// - info(): returns the model's description, which never changes.
/// - predict(batch): fills batch.output(), or refuses rows. An exception fails all requests of the batch.
template <class P>
concept predictor = std::movable<P> && requires(P& model, const P& const_model, prediction_batch& batch) {
  { const_model.info() } -> std::convertible_to<const model_info&>;
  model.predict(batch);
};

/// A predictor that prepares each row separately, for example by decoding a JPEG. A second thread prepares rows while
/// the first thread predicts.
///
/// - prepared_bytes(): returns the number of bytes in a prepared row, or 0 if the model does not prepare rows.
/// - prepare(row, output): prepares a row. A data_error refuses the row.
/// - predict_prepared(batch): predicts like predict(), but from prepared rows.
template <class P>
concept preparing_predictor = predictor<P> &&
    requires(P& model, std::span<const std::byte> row, std::span<std::byte> output, prediction_batch& batch) {
  { model.prepared_bytes() } -> std::convertible_to<std::size_t>;
  model.prepare(row, output);
  model.predict_prepared(batch);
};

/// A predictor whose requests may have a file for each row, such as a JPEG, if info().input.takes_files. A second
/// thread reads files while the first thread predicts. The model must not be a preparing_predictor with prepared rows
/// too.
///
/// - read_file(file, row): writes the row, which has info().input.row_bytes() bytes. A data_error refuses the row.
template <class P>
concept file_predictor = predictor<P> && requires(P& model, std::span<const std::byte> file, std::span<std::byte> row) {
  model.read_file(file, row);
};

/// A type-erased predictor. It costs one indirect call for each batch.
class any_predictor {
 public:
  /// Takes ownership of the model.
  template <class P>
  requires(!std::same_as<P, any_predictor> && predictor<P>) any_predictor(P model)  // NOLINT: meant to convert
      : info_(model.info()) {
    const auto shared_model = std::make_shared<P>(std::move(model));
    predict_ = [shared_model](prediction_batch& batch) { shared_model->predict(batch); };
    if constexpr (preparing_predictor<P>) {
      prepared_bytes_ = shared_model->prepared_bytes();
      prepare_ = [shared_model](std::span<const std::byte> row, std::span<std::byte> output) {
        shared_model->prepare(row, output);
      };
      predict_prepared_ = [shared_model](prediction_batch& batch) { shared_model->predict_prepared(batch); };
    }
    info_.input.takes_files = info_.input.takes_files && file_predictor<P>;
    if constexpr (file_predictor<P>) {
      read_file_ = [shared_model](std::span<const std::byte> file, std::span<std::byte> row) {
        shared_model->read_file(file, row);
      };
    }
  }
  any_predictor(any_predictor&&) noexcept = default;
  any_predictor& operator=(any_predictor&&) noexcept = default;

  /// Returns the description that the model returned at construction.
  [[nodiscard]] const model_info& info() const noexcept { return info_; }
  /// Calls predict() of the model.
  void predict(prediction_batch& batch) { predict_(batch); }
  /// The functions of preparing_predictor. prepared_bytes() is 0 if the model is not a preparing_predictor.
  [[nodiscard]] std::size_t prepared_bytes() const noexcept { return prepared_bytes_; }
  void prepare(std::span<const std::byte> row, std::span<std::byte> output) { prepare_(row, output); }
  void predict_prepared(prediction_batch& batch) { predict_prepared_(batch); }
  /// The function of file_predictor. Called only if info().input.takes_files.
  void read_file(std::span<const std::byte> file, std::span<std::byte> row) { read_file_(file, row); }

 private:
  model_info info_;
  std::size_t prepared_bytes_ = 0;
  std::function<void(std::span<const std::byte>, std::span<std::byte>)> prepare_;
  std::function<void(prediction_batch&)> predict_prepared_;
  std::function<void(std::span<const std::byte>, std::span<std::byte>)> read_file_;
  std::function<void(prediction_batch&)> predict_;
};
static_assert(predictor<any_predictor>);

}}}  // namespace muster::v0::serve
