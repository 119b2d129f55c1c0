// What the system or a library gave, with one owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace muster::inline v0::detail {

/// Gives something back by this function: the deleter of a std::unique_ptr.
template <auto Function>
struct freed_by {
  void operator()(auto* what) const noexcept { (void)Function(what); }
};

/// A file descriptor.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(number_, -1); }
  /// Closes now, because for some file systems only that tells of an error.
  [[nodiscard]] bool close() noexcept { return ::close(release()) == 0; }

 private:
  int number_ = -1;
};

}  // namespace muster::inline v0::detail
