// Event files, which TensorBoard shows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <muster/core/descriptor.hpp>

namespace muster { inline namespace v0 {

/// A scalar of an event: a number that TensorBoard draws over the steps.
struct tensorboard_scalar {
  std::string_view tag;  ///< name of the curve
  double value = 0;      ///< written as float32; NaN: the scalar is left out
};

/// A writer of an event file for TensorBoard: TFRecord frames of tensorflow.Event messages
/// (tensorflow/core/util/event.proto), each with the time of the call. TensorBoard shows the files in a folder as a
/// single run. Not thread safe.
class tensorboard_file {
 public:
  /// Creates the file FOLDER/events.out.tfevents.SECONDS.HOST.PID.N, and missing folders. TensorBoard drops the scalars
  /// of earlier files from `first_step` on, for a training that resumes. Throws configuration_error when the file
  /// cannot be created.
  explicit tensorboard_file(const std::string& folder, std::uint64_t first_step = 0);

  /// Appends the scalars of a step. A reader sees them at once. Throws configuration_error when the file cannot be
  /// written. The file may then end within a frame, so a caller that continues makes another file.
  void add(std::uint64_t step, std::span<const tensorboard_scalar> scalars);

  /// Returns the path of the file.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  void append(std::string_view frames);

  std::string path_;
  detail::descriptor file_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
