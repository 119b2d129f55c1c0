// Several requests of one collective at a time.
#pragma once

#include <cstddef>
#include <memory>

#include <muster/comm/task.hpp>

namespace muster::inline v0::detail {

/// A small array in memory of the group. Requests are taken back when it goes.
template <class T>
class pool_array {
 public:
  pool_array(frame_pool& pool, std::size_t count)
      : first_(static_cast<T*>(pool.take(count * sizeof(T)))), count_(count) {
    std::uninitialized_default_construct_n(first_, count);
  }
  pool_array(const pool_array&) = delete;
  pool_array& operator=(const pool_array&) = delete;
  ~pool_array() {
    std::destroy_n(first_, count_);
    frame_pool::release(first_);
  }
  T& operator[](std::size_t i) noexcept { return first_[i]; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }

 private:
  T* first_;
  std::size_t count_;
};

/// Whether a request is known to be over without asking its transport, which for some is a call to the system: those
/// that move all that is under way at once have seen to it when another was tested.
[[nodiscard]] inline bool is_over(request& r) noexcept { return r.held_by() == nullptr; }

}  // namespace muster::inline v0::detail
