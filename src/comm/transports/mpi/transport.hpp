// Messages over MPI.
#pragma once

#include <mpi.h>

#include <memory>
#include <set>
#include <span>
#include <vector>

#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

#include "library.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// What MPI can do before it is asked for its thread level.
inline constexpr transport_abilities mpi_abilities{
    .name = "mpi",
    .native_collectives = true,
    .any_source = true,
    .combines_whole = true,
    .costs = {.latency = 3.0e-6, .per_byte = 1.6e-10, .reduce_per_byte = 0.6e-10}};

/// One rank of a communicator. A message is an envelope with the signature and, if it is small, the payload behind it
/// in the same MPI message; a larger payload follows in a message of its own, from and to the user's memory without a
/// copy.
class mpi_transport final : public transport {
 public:
  /// Takes the communicator over and frees it in the end.
  mpi_transport(std::shared_ptr<mpi_library> library, MPI_Comm communicator, bool oversubscribed);
  ~mpi_transport() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] transport_abilities abilities() const override;
  [[nodiscard]] bool oversubscribed() const override { return oversubscribed_; }
  void send(request& r) override;
  void receive(request& r) override;
  bool native(const collective_call& call, request& r) override;
  bool test(request& r) override;
  void cancel(request& r) noexcept override;
  void notify(int peer, const control_message& message) override;
  bool poll(control_message& message) override;
  void pause(clock::time_point until) override;
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& some) override;

 private:
  struct alignas(16) envelope {  // so that the payload behind it is aligned for every element
    collective_signature signature;
    std::uint64_t bytes;
    std::uint64_t body_tag;
  };
  // What fits MPI's own eager messages over shared memory (4 KiB with Open MPI): beyond, a copy saves nothing.
  static constexpr std::size_t slot_size = 4032;
  static constexpr std::size_t inline_limit = slot_size - sizeof(envelope);
  struct slot {
    alignas(16) std::byte bytes[slot_size];
    envelope& head() { return *reinterpret_cast<envelope*>(bytes); }
    std::byte* payload() { return bytes + sizeof(envelope); }
    /// Memory in place of the user's: it grows to the largest that ever came.
    std::byte* land(std::size_t size) {
      if (landing.size() < size) landing.resize(size);
      return landing.data();
    }
    std::vector<std::byte> landing;
    MPI_Request dropped = MPI_REQUEST_NULL;  // a body that is awaited no more comes to `landing`
  };
  struct note {
    MPI_Request sent = MPI_REQUEST_NULL;
    control_message text;
  };
  // In request::room.
  struct progress {
    enum class kind { send, receive, native } what;
    MPI_Request head;
    MPI_Request body;
    slot* held;
    std::byte* landing;  // the slot's memory that MPI uses in place of the user's; null when it uses that
    bool head_done;
    const reduction* reduce;  // of a native collective that is to be finished
  };
  static_assert(sizeof(progress) <= sizeof(request::room));
  static progress& of(request& r) { return *reinterpret_cast<progress*>(r.room); }

  progress& begin(request& r, progress::kind what);
  void post_body(request& r, int source, int tag);
  bool test_receive(request& r);
  void drop_body(slot& held, int source) noexcept;
  void take_back_slots() noexcept;
  bool tell_of_death(control_message& message);
  void finish(request& r) noexcept;

  std::shared_ptr<mpi_library> library_;
  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  bool oversubscribed_;
  int idle_ = 0;              // pauses since something was done
  bool told_end_ = false;     // this rank said that it ends by a failure, or leaves
  std::set<int> ends_heard_;  // and those that said so
  clock::time_point last_poll_{};
  bool survives_ = false;  // MPI goes on when ranks die
  clock::time_point last_look_{};
  std::vector<int> ended_;       // those that were told of
  std::uint64_t next_body_ = 0;  // so that bodies of tagged messages find their envelopes
  std::vector<std::unique_ptr<slot>> slots_;
  std::vector<slot*> free_slots_;
  std::vector<std::unique_ptr<note>> notes_;
};

#ifdef MUSTER_HAVE_ULFM

/// As process_transport::connect_survivors: shrinks MPI's world to the ranks that live, which agree that they are the
/// members, in the same generation.
std::unique_ptr<transport> connect_survivors(const settings& configuration, std::span<const std::uint64_t> members,
                                             int self, std::uint64_t generation);
bool can_connect_survivors();

#endif

}}}  // namespace muster::v0::detail
