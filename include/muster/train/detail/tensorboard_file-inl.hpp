#pragma once

#include <muster/train/tensorboard_file.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <system_error>

#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>
#include <muster/data/sources/tfrecord.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// A writer of a Protocol Buffers message (https://protobuf.dev/programming-guides/encoding/).
class proto_message {
 public:
  void add_number(int field, std::uint64_t value) {
    add_tag(field, 0);
    add_varint(value);
  }
  void add_double(int field, double value) {
    add_tag(field, 1);
    bytes_.add(std::bit_cast<std::uint64_t>(value));
  }
  void add_text(int field, std::string_view text) {
    add_tag(field, 2);
    add_varint(text.size());
    bytes_.add_bytes(std::as_bytes(std::span(text)));
  }
  void add_float(int field, float value) {
    add_tag(field, 5);
    bytes_.add(std::bit_cast<std::uint32_t>(value));
  }
  [[nodiscard]] std::string take() noexcept { return bytes_.take(); }

 private:
  void add_tag(int field, unsigned wire_type) { add_varint(static_cast<unsigned>(field) << 3 | wire_type); }
  void add_varint(std::uint64_t value) {
    for (; value > 0x7f; value >>= 7) bytes_.add(static_cast<std::uint8_t>(value | 0x80));
    bytes_.add(static_cast<std::uint8_t>(value));
  }

  wire_writer bytes_;
};

// Returns the frame of an event at the present time. `add_content` adds the fields of the event besides time and step.
template <class Add>
std::string event_frame(std::uint64_t step, const Add& add_content) {
  proto_message message;
  message.add_double(1, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  message.add_number(2, step);
  add_content(message);
  return data::detail::tfrecord_frame(message.take());
}

}  // namespace detail

MUSTER_INLINE tensorboard_file::tensorboard_file(const std::string& folder, std::uint64_t first_step) {
  static std::atomic<unsigned> files{0};  // in this process
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  path_ = folder + "/events.out.tfevents." +
          std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count()) + "." + detail::host_name() +
          "." + std::to_string(::getpid()) + "." + std::to_string(files++);
  file_ = detail::descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
  if (!file_) {
    throw configuration_error("'" + path_ + "' cannot be created (" + std::generic_category().message(errno) +
                              "); name another folder");
  }
  append(detail::event_frame(0, [](auto& event) { event.add_text(3, "brain.Event:2"); }) +
         detail::event_frame(first_step, [](auto& event) {
           detail::proto_message session;
           session.add_number(1, 1);  // SessionLog.START
           event.add_text(7, session.take());
         }));
}

MUSTER_INLINE void tensorboard_file::add(std::uint64_t step, std::span<const tensorboard_scalar> scalars) {
  detail::proto_message summary;
  for (const auto& scalar : scalars) {
    if (std::isnan(scalar.value)) continue;
    detail::proto_message value;
    value.add_text(1, scalar.tag);
    value.add_float(2, static_cast<float>(scalar.value));
    summary.add_text(1, value.take());
  }
  append(detail::event_frame(step, [&](auto& event) { event.add_text(5, summary.take()); }));
}

MUSTER_INLINE void tensorboard_file::append(std::string_view frames) {
  while (!frames.empty()) {
    const auto written = ::write(file_.get(), frames.data(), frames.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw configuration_error("'" + path_ + "' cannot be written (" + std::generic_category().message(errno) +
                                "); free some space, or name another folder");
    }
    frames.remove_prefix(static_cast<std::size_t>(written));
  }
}

}}  // namespace muster::v0
