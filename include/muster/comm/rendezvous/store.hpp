// The one concept for stores: where ranks that are not connected yet leave word for each other, and agree.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>

namespace muster::inline v0 {

/// The longest key and value, in bytes; a longer one, and an empty key, is a configuration_error. Both are any bytes.
inline constexpr std::size_t store_key_limit = 1024;
inline constexpr std::size_t store_value_limit = std::size_t{1} << 20;

/// What a store has under a key. The version is that of the last write, greater than that of every write before it, to
/// this or any other key; 0 where there is nothing.
struct store_entry {
  std::uint64_t version = 0;
  std::string value;

  explicit operator bool() const noexcept { return version != 0; }
  bool operator==(const store_entry&) const = default;
};

/// What became of a compare_and_swap, and what is there now: after success the value that was written is not repeated.
struct store_swap {
  bool swapped = false;
  store_entry now;
};

/// A write was to hang on a lease that has ended: its holder was silent for too long, and the others count it as gone.
class store_lease_ended : public error {
 public:
  explicit store_lease_ended(const std::string& text) : error(error_kind::timeout, text) {}
};

/// The store was begun anew while this process was cut off from it: it has no part any more in what the others agree on.
/// Every call fails like this from then on.
class store_left_behind : public peer_failure {
 public:
  explicit store_left_behind(const std::string& text) : peer_failure({}, text) {}
};

/// A lease that this process holds. The store keeps it alive on a thread of its own; it ends when this is destroyed or
/// the store is closed, soon after the process dies (at once where the system tells), and a time-to-live after the
/// process was last heard of when it is stopped or cut off. The keys that hang on it vanish as it ends. Thread safe.
class store_lease {
 public:
  /// What a store gives to be held; its destructor ends the lease.
  class holder {
   public:
    holder() = default;
    holder(const holder&) = delete;
    holder& operator=(const holder&) = delete;
    virtual ~holder() = default;
    [[nodiscard]] virtual std::uint64_t id() const noexcept = 0;
    [[nodiscard]] virtual bool held() const noexcept = 0;
  };

  /// None.
  store_lease() = default;
  explicit store_lease(std::unique_ptr<holder> held) noexcept : holder_(std::move(held)) {}

  /// What `compare_and_swap` takes; 0 for none.
  [[nodiscard]] std::uint64_t id() const noexcept { return holder_ ? holder_->id() : 0; }
  /// Whether nobody can have counted it as ended yet: it is less than its time-to-live since it was last kept alive. So
  /// false may be caution, where the store is slow to answer.
  [[nodiscard]] bool held() const noexcept { return holder_ && holder_->held(); }
  /// Ends it now.
  void end() noexcept { holder_.reset(); }

 private:
  std::unique_ptr<holder> holder_;
};

/// A small set of keys and values that all processes of a job see alike. It lives as long as somebody has it open.
///
/// Every call is linearizable: it takes effect at one moment between its start and its return, for all processes. Calls
/// may be made by many threads at once, and take a deadline: `timeout_error` when it passes (a swap may then have
/// happened or not: `get` tells), `peer_failure` as soon as the store itself is gone, after which every call fails the
/// same way.
///
/// `get` returns what is there. `compare_and_swap` writes `value`, or removes the key when it is nothing, if the key's
/// version is still `expected` (0: if nothing is there); the key then hangs on `lease`, if that is not 0, and vanishes
/// with it. `watch` returns as soon as the version is not `known`, be it that the key was written, was removed or
/// vanished with its lease, and nothing when the deadline comes first; of several changes it may see the last alone.
/// `lease` begins a lease, `ttl` from 0.1 s to an hour. `where` names the store in errors, "tcp://10.0.0.1:29500".
template <class T>
concept store = requires(T& s, const T& c, std::string_view key, std::optional<std::string_view> value,
                         std::uint64_t number, seconds ttl, clock::time_point until) {
  { s.get(key, until) } -> std::same_as<store_entry>;
  { s.compare_and_swap(key, number, value, until) } -> std::same_as<store_swap>;
  { s.compare_and_swap(key, number, value, until, number) } -> std::same_as<store_swap>;
  { s.watch(key, number, until) } -> std::same_as<std::optional<store_entry>>;
  { s.lease(ttl, until) } -> std::same_as<store_lease>;
  { c.where() } -> std::same_as<std::string>;
};

/// A store chosen at run time. Move-only; closes the store when it is destroyed.
class any_store {
 public:
  template <store T>
  requires(!std::same_as<T, any_store>) explicit any_store(std::unique_ptr<T> owned)
      : self_(std::make_unique<model<T>>(std::move(owned))) {}

  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until) { return self_->get(key, until); }
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, std::uint64_t lease = 0) {
    return self_->compare_and_swap(key, expected, value, until, lease);
  }
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until) {
    return self_->watch(key, known, until);
  }
  [[nodiscard]] store_lease lease(seconds ttl, clock::time_point until) { return self_->lease(ttl, until); }
  [[nodiscard]] std::string where() const { return self_->where(); }
  /// Whether this process serves it to the others, and it ends with this object: who has it closes it last.
  [[nodiscard]] bool is_served_here() const { return self_->is_served_here(); }

 private:
  struct interface {
    interface() = default;
    interface(const interface&) = delete;
    interface& operator=(const interface&) = delete;
    virtual ~interface() = default;
    virtual store_entry get(std::string_view key, clock::time_point until) = 0;
    virtual store_swap compare_and_swap(std::string_view key, std::uint64_t expected,
                                        std::optional<std::string_view> value, clock::time_point until,
                                        std::uint64_t lease) = 0;
    virtual std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until) = 0;
    virtual store_lease lease(seconds ttl, clock::time_point until) = 0;
    virtual std::string where() const = 0;
    virtual bool is_served_here() const = 0;
  };

  template <store T>
  struct model final : interface {
    explicit model(std::unique_ptr<T> owned) : inner(std::move(owned)) {}
    store_entry get(std::string_view key, clock::time_point until) override { return inner->get(key, until); }
    store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                                clock::time_point until, std::uint64_t lease) override {
      return inner->compare_and_swap(key, expected, value, until, lease);
    }
    std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until) override {
      return inner->watch(key, known, until);
    }
    store_lease lease(seconds ttl, clock::time_point until) override { return inner->lease(ttl, until); }
    std::string where() const override { return std::as_const(*inner).where(); }
    bool is_served_here() const override {
      if constexpr (requires { inner->is_served_here(); }) return inner->is_served_here();
      return false;
    }
    std::unique_ptr<T> inner;
  };

  std::unique_ptr<interface> self_;
};

static_assert(store<any_store>);

namespace detail {

/// Throws configuration_error when the store at `where` does not take that.
void check_store_key(std::string_view key, const std::string& where);
void check_store_value(std::optional<std::string_view> value, const std::string& where);
void check_store_ttl(seconds ttl, const std::string& where);
/// The error of a call that reached its deadline.
[[noreturn]] void store_timed_out(const char* call, std::string_view key, const std::string& where);

}  // namespace detail
}  // namespace muster::inline v0
