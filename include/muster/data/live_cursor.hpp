// A loader's cursor together with the loader, for whoever moves it.
#pragma once

#include <concepts>
#include <utility>

#include <muster/data/cursor.hpp>

namespace muster::inline v0 {

/// What has a cursor that steps move: loader, any_loader, or one's own.
template <class T>
concept cursor_owner = requires(T& owner, const T& same, const cursor& there) {
  { same.cursor() } -> std::same_as<const cursor&>;
  owner.open(there);
  owner.commit();
  owner.next_epoch();
};

/// What `cursor()` of a loader gives that can be changed: the cursor as it is at that moment, to copy, save or compare,
/// and a way to move the loader on, which is how a `state` goes with it. Refers to the loader, which must stay where it
/// is; the cursor itself can be used without it.
class live_cursor : public cursor {
 public:
  template <cursor_owner Loader>
  explicit live_cursor(Loader& loader) noexcept
      : cursor(std::as_const(loader).cursor()), loader_(&loader), calls_(&calls_of<Loader>) {}

  /// The loader's cursor as it is now.
  [[nodiscard]] const cursor& now() const noexcept { return calls_->now(loader_); }
  /// As the loader's functions of these names.
  void open(const cursor& there) const { calls_->open(loader_, there); }
  void commit() const { calls_->commit(loader_); }
  void next_epoch() const { calls_->next_epoch(loader_); }

 private:
  struct calls {
    const cursor& (*now)(const void*) noexcept;
    void (*open)(void*, const cursor&);
    void (*commit)(void*);
    void (*next_epoch)(void*);
  };
  template <class Loader>
  static constexpr calls calls_of = {
      [](const void* loader) noexcept -> const cursor& { return static_cast<const Loader*>(loader)->cursor(); },
      [](void* loader, const cursor& there) { static_cast<Loader*>(loader)->open(there); },
      [](void* loader) { static_cast<Loader*>(loader)->commit(); },
      [](void* loader) { static_cast<Loader*>(loader)->next_epoch(); }};

  void* loader_;
  const calls* calls_;
};

}  // namespace muster::inline v0
