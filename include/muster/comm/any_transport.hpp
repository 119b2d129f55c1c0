// A transport chosen at run time.
#pragma once

#include <memory>
#include <utility>

#include <muster/comm/transport.hpp>

namespace muster::inline v0 {

/// Owns a transport of any class that models the concept. The erased calls cost one indirect call each; a request goes
/// straight to the owned transport when it is taken back.
class any_transport final : public request_owner {
 public:
  template <transport T>
  explicit any_transport(std::unique_ptr<T> owned) : self_(std::make_unique<model<T>>(std::move(owned))) {}
  any_transport(any_transport&&) = delete;

  [[nodiscard]] int rank() const { return self_->rank(); }
  [[nodiscard]] int size() const { return self_->size(); }
  [[nodiscard]] transport_abilities abilities() const { return self_->abilities(); }
  [[nodiscard]] std::pmr::memory_resource* memory() const { return self_->memory(); }
  [[nodiscard]] bool crowded() const { return self_->crowded(); }
  [[nodiscard]] bool must_yield() const { return self_->must_yield(); }
  void send(request& r) { self_->send(r); }
  void receive(request& r) { self_->receive(r); }
  bool native(const native_call& call, request& r) { return self_->native(call, r); }
  bool test(request& r) { return self_->test(r); }
  void cancel(request& r) noexcept override { self_->cancel(r); }
  bool move_buffer(request& r, std::byte* to) noexcept override { return self_->move_buffer(r, to); }
  void notify(int peer, const notice& message) { self_->notify(peer, message); }
  bool poll(notice& message) { return self_->poll(message); }
  void pause(clock::time_point until) { self_->pause(until); }
  /// After a notice that a rank is gone, whose connection alone may have broken: begins to connect to it again. Nothing
  /// of before comes any more, so what is under way between the two is to be taken back. If it is not connected by
  /// `until`, or nothing listens at its addresses, there is another such notice. False where this transport cannot
  /// connect again, or has tried.
  [[nodiscard]] bool renew(int peer, clock::time_point until) { return self_->renew(peer, until); }
  [[nodiscard]] std::uint64_t prepare(std::span<const int> members) { return self_->prepare(members); }
  [[nodiscard]] std::unique_ptr<any_transport> subgroup(const subgroup_call& some) { return self_->subgroup(some); }

 private:
  struct interface {
    interface() = default;
    interface(const interface&) = delete;
    interface& operator=(const interface&) = delete;
    virtual ~interface() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual transport_abilities abilities() const = 0;
    virtual std::pmr::memory_resource* memory() const = 0;
    virtual bool crowded() const = 0;
    virtual bool must_yield() const = 0;
    virtual void send(request& r) = 0;
    virtual void receive(request& r) = 0;
    virtual bool native(const native_call& call, request& r) = 0;
    virtual bool test(request& r) = 0;
    virtual void cancel(request& r) noexcept = 0;
    virtual bool move_buffer(request& r, std::byte* to) noexcept = 0;
    virtual void notify(int peer, const notice& message) = 0;
    virtual bool poll(notice& message) = 0;
    virtual void pause(clock::time_point until) = 0;
    virtual bool renew(int peer, clock::time_point until) = 0;
    virtual std::uint64_t prepare(std::span<const int> members) = 0;
    virtual std::unique_ptr<any_transport> subgroup(const subgroup_call& some) = 0;
  };

  template <transport T>
  struct model final : interface {
    explicit model(std::unique_ptr<T> owned) : inner(std::move(owned)) {}
    int rank() const override { return std::as_const(*inner).rank(); }
    int size() const override { return std::as_const(*inner).size(); }
    transport_abilities abilities() const override { return std::as_const(*inner).abilities(); }
    std::pmr::memory_resource* memory() const override { return std::as_const(*inner).memory(); }
    bool crowded() const override { return std::as_const(*inner).crowded(); }
    bool must_yield() const override { return std::as_const(*inner).must_yield(); }
    void send(request& r) override { inner->send(r); }
    void receive(request& r) override { inner->receive(r); }
    bool native(const native_call& call, request& r) override { return inner->native(call, r); }
    bool test(request& r) override { return inner->test(r); }
    void cancel(request& r) noexcept override { inner->cancel(r); }
    bool move_buffer(request& r, std::byte* to) noexcept override { return inner->move_buffer(r, to); }
    void notify(int peer, const notice& message) override { inner->notify(peer, message); }
    bool poll(notice& message) override { return inner->poll(message); }
    void pause(clock::time_point until) override { inner->pause(until); }
    std::unique_ptr<any_transport> subgroup(const subgroup_call& some) override {
      return std::make_unique<any_transport>(inner->subgroup(some));
    }
    // Abilities of few.
    bool renew(int peer, clock::time_point until) override {
      if constexpr (requires { inner->renew(peer, until); }) return inner->renew(peer, until);
      return false;
    }
    std::uint64_t prepare(std::span<const int> members) override {
      if constexpr (requires { inner->prepare(members); }) return inner->prepare(members);
      return 0;
    }
    std::unique_ptr<T> inner;
  };

  std::unique_ptr<interface> self_;
};

static_assert(transport<any_transport>);

}  // namespace muster::inline v0
