// Streams, which order the operations of a device, and events in streams.
#pragma once

#include <memory>

#include <muster/core/clock.hpp>

// Declared here so that no vendor header is needed: CUDA's own types behind cudaStream_t and cudaEvent_t.
struct CUstream_st;
struct CUevent_st;

namespace muster { inline namespace v0 {

/// A reference to a CUDA stream (`cudaStream_t` converts to it). The operations on a stream run in the order of their
/// calls. Owns nothing. Null is the default stream, with its implicit synchronisation.
struct device_stream_ref {
  CUstream_st* handle = nullptr;
};

/// Returns the number of devices that this process can use; 0 without a device or driver.
[[nodiscard]] int device_count() noexcept;
/// Returns and sets the calling thread's device. Throws configuration_error for a device that does not exist.
[[nodiscard]] int current_device();
void use_device(int device);

/// An owned stream of the device that is current at construction. It does not synchronise implicitly with other
/// streams. After destruction its enqueued operations still complete. Calls throw muster::error with CUDA's own text.
class device_stream {
 public:
  device_stream();

  /// Returns a reference, which is valid as long as the stream.
  operator device_stream_ref() const noexcept { return {handle_.get()}; }  // NOLINT: is used as the stream it is

 private:
  struct release {
    void operator()(CUstream_st* handle) const noexcept;
  };
  std::unique_ptr<CUstream_st, release> handle_;
};

/// A mark in a stream. It is complete when all operations that were enqueued before it are complete.
class device_event {
 public:
  /// Creates an empty event, which is complete.
  device_event() noexcept = default;
  /// Marks the current position of the stream.
  explicit device_event(device_stream_ref stream);

  /// Returns true if the event is complete. Does not block. Throws muster::error when the device has failed.
  [[nodiscard]] bool test() const;
  /// Waits for the event like `wait_for`.
  void wait(clock::time_point deadline) const;
  /// Delays all later operations on `stream` until this event is complete. Does not block the processor.
  void delay(device_stream_ref stream) const;

 private:
  struct release {
    void operator()(CUevent_st* handle) const noexcept;
  };
  std::unique_ptr<CUevent_st, release> handle_;
};

/// Waits until all operations on the stream are complete. Throws timeout_error at the deadline.
void wait_for(device_stream_ref stream, clock::time_point deadline);

}}  // namespace muster::v0
