// The mpi transport: messages over MPI.
//
// A message is an envelope with the signature. The payload of a small message follows the envelope in the same MPI
// message. A larger payload is sent in its own MPI message (the body), directly between the buffers of the user. The
// body of a collective's message has a fixed tag, and the receiver posts the receive for it at once. The body of a
// tagged message has a tag that the envelope contains, and the receiver posts the receive for it when the envelope has
// arrived.
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

/// The abilities of the mpi transport before MPI's thread level is known.
inline constexpr transport_abilities mpi_abilities{
    .name = "mpi",
    .native_collectives = true,
    .any_source = true,
    .buffers_whole_message = true,
    .costs = {.latency = 3.0e-6, .per_byte = 1.6e-10, .reduce_per_byte = 0.6e-10}};

/// A rank in a communicator. Used by one thread at a time.
class mpi_transport final : public transport {
 public:
  /// Takes over the communicator, and frees it in the end.
  mpi_transport(std::shared_ptr<mpi_library> library, MPI_Comm communicator, bool oversubscribed);
  ~mpi_transport() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] transport_abilities abilities() const override;
  [[nodiscard]] bool oversubscribed() const override { return oversubscribed_; }
  void send(request& req) override;
  void receive(request& req) override;
  bool native(const collective_call& call, request& req) override;
  bool test(request& req) override;
  void cancel(request& req) noexcept override;
  void notify(int peer, const control_message& message) override;
  bool poll(control_message& message) override;
  void pause(clock::time_point deadline) override;
  [[nodiscard]] std::unique_ptr<transport> subgroup(const subgroup_call& call) override;

 private:
  struct alignas(16) envelope {  // the alignment makes the payload after it aligned for every element type
    collective_signature signature;
    std::uint64_t bytes;
    std::uint64_t body_tag;
  };
  // Size of a slot: the largest eager message of MPI over shared memory (4 KiB with Open MPI). Beyond that size a copy
  // saves nothing.
  static constexpr std::size_t slot_size = 4032;
  static constexpr std::size_t inline_limit = slot_size - sizeof(envelope);
  struct slot {
    alignas(16) std::byte bytes[slot_size];
    envelope& head() { return *reinterpret_cast<envelope*>(bytes); }
    std::byte* payload() { return bytes + sizeof(envelope); }
    /// Returns memory to use in place of the user's buffer. The memory grows to the largest size that was requested.
    std::byte* private_memory(std::size_t size) {
      if (private_buffer.size() < size) private_buffer.resize(size);
      return private_buffer.data();
    }
    std::vector<std::byte> private_buffer;
    // receives into `private_buffer` a body that no request waits for any more
    MPI_Request discarded_body = MPI_REQUEST_NULL;
  };
  struct control_send {
    MPI_Request sent = MPI_REQUEST_NULL;
    control_message text;
  };
  // The state of a request, in request::transport_storage.
  struct operation_state {
    enum class kind_type { send, receive, native } kind;
    MPI_Request head;
    MPI_Request body;
    slot* message_slot;
    std::byte* private_buffer;  // the slot's private buffer, if MPI uses it in place of the user's; otherwise null
    bool head_done;
    int peeked_source;        // sender of a head that a peek has received before; -1 if there is none
    const reduction* reduce;  // reduction to finish after a native collective
  };
  static_assert(sizeof(operation_state) <= sizeof(request::transport_storage));
  static operation_state& state_of(request& req) { return *reinterpret_cast<operation_state*>(req.transport_storage); }

  operation_state& begin(request& req, operation_state::kind_type kind);
  // The head of a message that a peek has received and no receive has taken.
  struct peeked_head {
    slot* message_slot;
    int source;
    std::uint32_t tag;
  };
  // Returns the oldest such head that fits the receive, or the end.
  [[nodiscard]] std::vector<peeked_head>::iterator find_peeked(const request& req) noexcept;
  bool test_peek(request& req);
  void post_body(request& req, int sender, int tag);
  bool test_receive(request& req);
  void discard_body(slot& message_slot, int sender) noexcept;
  void reclaim_slots() noexcept;
  bool poll_deaths(control_message& message);
  void finish(request& req) noexcept;

  std::shared_ptr<mpi_library> library_;
  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  bool oversubscribed_;
  int idle_pauses_ = 0;            // number of pauses since a request was finished
  bool reported_failure_ = false;  // set when this rank has reported its failure to the peers
  std::set<int> failed_senders_;   // ranks that have reported their failure to this rank
  clock::time_point last_poll_{};
  bool survives_deaths_ = false;  // set if MPI continues when ranks die
  clock::time_point last_death_check_{};
  std::vector<int> reported_deaths_;  // ranks whose death was reported
  std::uint64_t next_body_ = 0;       // number of the next body; selects its tag
  std::vector<std::unique_ptr<slot>> slots_;
  std::vector<slot*> free_slots_;
  std::vector<peeked_head> peeked_;
  std::vector<std::unique_ptr<control_send>> control_sends_;
};

#ifdef MUSTER_HAVE_ULFM

/// Implements process_transport::connect_survivors: shrinks MPI's world to the living ranks, which must be the members,
/// all in the same generation.
std::unique_ptr<transport> connect_survivors(const settings& configuration, std::span<const std::uint64_t> members,
                                             int self, std::uint64_t generation);
/// Implements process_transport::can_connect_survivors: initialises MPI, and returns false once MPI is abandoned.
bool can_connect_survivors();

#endif

}}}  // namespace muster::v0::detail
