#include "mpi_transport.hpp"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <deque>
#include <mutex>
#include <utility>

#include <muster/core/error.hpp>

#include <muster/comm/comm_timing.hpp>

namespace muster { inline namespace v0 { namespace detail {
namespace {

// MPI tags. The messages of collectives use two fixed tags and match in order. The envelope of a tagged message
// contains the tag for the body.
constexpr int control_tag = 0;
constexpr int head_tag = 1;
constexpr int body_tag = 2;
constexpr int first_tagged = 16;
constexpr std::uint64_t body_tags = 4096;

int mpi_head_tag(std::uint32_t tag) { return tag == 0 ? head_tag : first_tagged + 2 * static_cast<int>(tag); }

// A byte count for MPI. Counts in MPI are ints. A larger count is one element of a derived type.
class byte_count {
 public:
  explicit byte_count(std::size_t bytes) {
    if (bytes <= static_cast<std::size_t>(INT_MAX)) {
      count_ = static_cast<int>(bytes);
      return;
    }
    constexpr std::size_t chunk = std::size_t{1} << 30;
    MPI_Datatype chunks = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(static_cast<int>(chunk), MPI_BYTE, &chunks), "MPI_Type_contiguous");
    const int lengths[] = {static_cast<int>(bytes / chunk), static_cast<int>(bytes % chunk)};
    const MPI_Aint places[] = {0, static_cast<MPI_Aint>(bytes - bytes % chunk)};
    const MPI_Datatype types[] = {chunks, MPI_BYTE};
    const int code = MPI_Type_create_struct(2, lengths, places, types, &type_);
    MPI_Type_free(&chunks);
    check_mpi(code, "MPI_Type_create_struct");
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  byte_count(const byte_count&) = delete;
  byte_count& operator=(const byte_count&) = delete;
  // Pending operations with the type continue after MPI_Type_free.
  ~byte_count() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }
  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] MPI_Datatype type() const noexcept { return type_; }

 private:
  int count_ = 1;
  MPI_Datatype type_ = MPI_BYTE;
};

// Returns true if the completed receive has received a message. The status is empty if no receive was pending.
bool has_message(int ended, const MPI_Status& status) {
  int cancelled = 0;
  return ended > 0 && status.MPI_SOURCE != MPI_ANY_SOURCE && MPI_Test_cancelled(&status, &cancelled) == MPI_SUCCESS &&
         cancelled == 0;
}

// Keeps memory that MPI may access until the process ends.
template <class T>
void leak(std::vector<T>& memory) {
  static std::deque<std::vector<T>> leaked;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  leaked.push_back(std::move(memory));
}

}  // namespace

mpi_transport::mpi_transport(std::shared_ptr<mpi_library> library, MPI_Comm communicator, bool oversubscribed)
    : library_(std::move(library)), comm_(communicator), oversubscribed_(oversubscribed) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  survives_deaths_ = mpi_survives_deaths();
}

mpi_transport::~mpi_transport() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised != 0 || library_->abandoned()) {
    // MPI may still access these buffers.
    leak(slots_);
    leak(control_sends_);
    return;
  }
  // After a failure here, a rank that has not reported a failure may never call MPI_Finalize, and MPI_Finalize would
  // wait for that rank without a deadline.
  if (reported_failure_ && static_cast<int>(failed_senders_.size()) < size_ - 1) library_->skip_finalize();
  const auto deadline = deadline_after(mpi_timing::cancel);
  for (auto& sent : control_sends_) {
    int done = 0;
    while (MPI_Test(&sent->sent, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0 && clock::now() < deadline)
      sched_yield();
    if (done == 0) (void)sent.release();
  }
  reclaim_slots();
  if (free_slots_.size() != slots_.size()) leak(slots_);  // an operation that never completed still uses one
  // Messages of a failed call may still be under way.
  if (survives_deaths_ || reported_failure_ || !failed_senders_.empty())
    library_->free_later(comm_);
  else
    MPI_Comm_free(&comm_);
}

transport_abilities mpi_transport::abilities() const {
  auto result = mpi_abilities;
  result.concurrent_groups = library_->concurrent();
  result.detects_death = survives_deaths_;
  return result;
}

mpi_transport::operation_state& mpi_transport::begin(request& req, operation_state::kind_type kind) {
  library_->check_thread();
  if (library_->abandoned()) {
    throw error(error_kind::other,
                "MPI cannot be used any more (an operation of an earlier failure cannot complete); end the program");
  }
  if (free_slots_.empty()) reclaim_slots();
  if (free_slots_.empty()) {  // allocates only if more requests are unfinished than ever before
    slots_.push_back(std::make_unique<slot>());
    free_slots_.reserve(slots_.size());
    free_slots_.push_back(slots_.back().get());
  }
  slot* const message_slot = free_slots_.back();
  free_slots_.pop_back();
  req.owner = this;
  return *::new (req.transport_storage)
      operation_state{kind, MPI_REQUEST_NULL, MPI_REQUEST_NULL, message_slot, nullptr, false, -1, nullptr};
}

void mpi_transport::finish(request& req) noexcept {
  free_slots_.push_back(state_of(req).message_slot);
  req.owner = nullptr;
  idle_pauses_ = 0;
}

void mpi_transport::send(request& req) {
  auto& p = begin(req, operation_state::kind_type::send);
  const bool is_small = req.bytes <= inline_limit;
  const int tag = req.tag == 0 ? body_tag : first_tagged + 1 + 2 * static_cast<int>(next_body_++ % body_tags);
  p.message_slot->head() = {req.signature, req.bytes, static_cast<std::uint64_t>(tag)};
  if (is_small && req.bytes > 0) std::memcpy(p.message_slot->payload(), req.data, req.bytes);
  const std::size_t head_bytes = sizeof(envelope) + (is_small ? req.bytes : 0);
  check_mpi(MPI_Isend(p.message_slot->bytes, static_cast<int>(head_bytes), MPI_BYTE, req.peer, mpi_head_tag(req.tag),
                      comm_, &p.head),
            "MPI_Isend", comm_);
  if (is_small) return;
  const byte_count body(req.bytes);
  check_mpi(MPI_Isend(req.data, body.count(), body.type(), req.peer, tag, comm_, &p.body), "MPI_Isend", comm_);
}

void mpi_transport::post_body(request& req, int sender, int tag) {
  auto& p = state_of(req);
  if (req.combine != nullptr) p.private_buffer = p.message_slot->private_memory(req.bytes);
  const byte_count body(req.bytes);
  check_mpi(MPI_Irecv(p.private_buffer != nullptr ? p.private_buffer : req.data, body.count(), body.type(), sender, tag,
                      comm_, &p.body),
            "MPI_Irecv", comm_);
}

std::vector<mpi_transport::peeked_head>::iterator mpi_transport::find_peeked(const request& req) noexcept {
  return std::find_if(peeked_.begin(), peeked_.end(), [&](const peeked_head& head) {
    return head.tag == req.tag && (req.peer == any_source || req.peer == head.source);
  });
}

// Receives the head of a message that has arrived: the head alone has the size of a large message. The head stays for a
// receive.
bool mpi_transport::test_peek(request& req) {
  auto found = find_peeked(req);
  if (found == peeked_.end()) {
    int is_available = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int source = req.peer == any_source ? MPI_ANY_SOURCE : req.peer;
    check_mpi(MPI_Improbe(source, mpi_head_tag(req.tag), comm_, &is_available, &message, &status), "MPI_Improbe",
              comm_);
    if (is_available == 0) return false;
    auto& p = state_of(req);
    check_mpi(MPI_Mrecv(p.message_slot->bytes, static_cast<int>(slot_size), MPI_BYTE, &message, MPI_STATUS_IGNORE),
              "MPI_Mrecv", comm_);
    found = peeked_.insert(peeked_.end(), {p.message_slot, status.MPI_SOURCE, req.tag});
    req.source = found->source;
    req.received = found->message_slot->head().bytes;
    req.owner = nullptr;  // the slot stays in use
    idle_pauses_ = 0;
    return true;
  }
  req.source = found->source;
  req.received = found->message_slot->head().bytes;
  finish(req);
  return true;
}

void mpi_transport::receive(request& req) {
  auto& p = begin(req, operation_state::kind_type::receive);
  if (req.peeks) return;
  if (const auto found = find_peeked(req); found != peeked_.end()) {
    free_slots_.push_back(std::exchange(p.message_slot, found->message_slot));
    p.peeked_source = found->source;
    peeked_.erase(found);
    return;
  }
  const int source = req.peer == any_source ? MPI_ANY_SOURCE : req.peer;
  check_mpi(MPI_Irecv(p.message_slot->bytes, static_cast<int>(slot_size), MPI_BYTE, source, mpi_head_tag(req.tag),
                      comm_, &p.head),
            "MPI_Irecv", comm_);
  if (req.tag == 0 && req.bytes > inline_limit) post_body(req, req.peer, body_tag);
}

bool mpi_transport::test_receive(request& req) {
  auto& p = state_of(req);
  int done = 0;
  if (!p.head_done) {
    MPI_Status status;
    check_mpi(MPI_Test(&p.head, &done, &status), "MPI_Test", comm_);
    if (done == 0) return false;
    p.head_done = true;
    const envelope& head = p.message_slot->head();
    req.source = p.peeked_source >= 0 ? p.peeked_source : status.MPI_SOURCE;
    req.received = head.bytes;
    check_arrival(req, req.source, head.signature, head.bytes);
    if (head.bytes <= inline_limit) {
      deliver(req, p.message_slot->payload(), head.bytes);
    } else if (req.tag != 0) {
      post_body(req, req.source, static_cast<int>(head.body_tag));
    }
  }
  if (req.received > inline_limit) {
    check_mpi(MPI_Test(&p.body, &done, MPI_STATUS_IGNORE), "MPI_Test", comm_);
    if (done == 0) return false;
    if (p.private_buffer != nullptr) deliver(req, p.private_buffer, req.received);
  }
  return true;
}

bool mpi_transport::test(request& req) {
  if (req.owner == nullptr) return true;
  auto& p = state_of(req);
  if (req.peeks && p.kind == operation_state::kind_type::receive) return test_peek(req);
  if (p.kind == operation_state::kind_type::receive) {
    if (!test_receive(req)) return false;
  } else {
    int done = 0;
    check_mpi(MPI_Test(&p.head, &done, MPI_STATUS_IGNORE), "MPI_Test", comm_);
    if (done == 0) return false;
    check_mpi(MPI_Test(&p.body, &done, MPI_STATUS_IGNORE), "MPI_Test", comm_);
    if (done == 0) return false;
    if (p.private_buffer != nullptr && req.bytes > 0) std::memcpy(req.data, p.private_buffer, req.bytes);
    if (p.reduce != nullptr) p.reduce->finish(req.data, req.bytes, size_);
  }
  finish(req);
  return true;
}

void mpi_transport::cancel(request& req) noexcept {
  auto& p = state_of(req);
  req.owner = nullptr;
  if (library_->abandoned()) return;
  const bool is_receive = p.kind == operation_state::kind_type::receive;
  for (MPI_Request* pending : {&p.head, &p.body}) {
    if (is_receive && *pending != MPI_REQUEST_NULL) MPI_Cancel(pending);  // MPI cannot cancel sends and collectives
  }
  int heads = 0;
  int bodies = 0;
  MPI_Status head{};
  MPI_Status body{};
  const auto ends_in_time = [&] {
    const auto deadline = deadline_after(mpi_timing::cancel);
    for (;;) {
      if (heads == 0 && MPI_Test(&p.head, &heads, &head) != MPI_SUCCESS) heads = -1;
      if (bodies == 0 && MPI_Test(&p.body, &bodies, &body) != MPI_SUCCESS) bodies = -1;
      if (heads != 0 && bodies != 0) return true;
      if (clock::now() >= deadline) return false;
      sched_yield();
    }
  };
  if (ends_in_time()) {
    const bool was_peeked = p.peeked_source >= 0 && !p.head_done;
    const bool has_head = is_receive && req.tag != 0 && (p.head_done || was_peeked || has_message(heads, head));
    if (has_head && p.message_slot->head().bytes > inline_limit && !has_message(bodies, body)) {
      const int source = p.head_done ? req.source : was_peeked ? p.peeked_source : head.MPI_SOURCE;
      return discard_body(*p.message_slot, source);
    }
    return finish(req);
  }
  // A send that no rank receives only reads, and its caller no longer needs it; its slot stays in use. A native
  // collective in a private buffer may continue there. Any other operation may still write into memory that is about to
  // be released.
  const bool is_harmless = p.kind == operation_state::kind_type::send ||
                           (p.kind == operation_state::kind_type::native && p.private_buffer != nullptr);
  if (is_harmless) return;
  // revoking the communicator ends all its pending operations, including control messages under way
  if (survives_deaths_) {
    revoke(comm_);
    if (ends_in_time()) return finish(req);
  }
  library_->abandon();
}

// Receives and discards the body of a tagged message whose envelope was received: the body arrives in any case. Tags of
// bodies are reused, and the body must not be matched with a later message.
void mpi_transport::discard_body(slot& message_slot, int sender) noexcept {
  try {
    const envelope& head = message_slot.head();
    const byte_count body(head.bytes);
    check_mpi(MPI_Irecv(message_slot.private_memory(head.bytes), body.count(), body.type(), sender,
                        static_cast<int>(head.body_tag), comm_, &message_slot.discarded_body),
              "MPI_Irecv", comm_);
  } catch (...) {  // without memory, or after the communicator failed
    free_slots_.push_back(&message_slot);
  }
}

// Frees the slots whose discarded body has arrived.
void mpi_transport::reclaim_slots() noexcept {
  for (const auto& slot_pointer : slots_) {
    int done = 0;
    if (slot_pointer->discarded_body == MPI_REQUEST_NULL) continue;
    if (MPI_Test(&slot_pointer->discarded_body, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0)
      free_slots_.push_back(slot_pointer.get());
  }
}

void mpi_transport::notify(int peer, const control_message& message) {
  // A message that is under way when the communicator is freed might arrive in a later communicator: see
  // mpi_library::free_later.
  const bool may_arrive_late = message.type == control_message::kind::leave && !survives_deaths_;
  if (library_->abandoned() || may_arrive_late || !library_->allows_this_thread()) return;
  reported_failure_ = reported_failure_ || message.reports_failure();
  std::erase_if(control_sends_, [](const auto& outgoing) {
    int done = 0;
    return MPI_Test(&outgoing->sent, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  });
  auto outgoing = std::make_unique<control_send>();  // an allocation is acceptable: control messages are rare
  outgoing->text = message;
  outgoing->text.origin = rank_;
  check_mpi(MPI_Isend(&outgoing->text, sizeof(control_message), MPI_BYTE, peer, control_tag, comm_, &outgoing->sent),
            "MPI_Isend", comm_);
  control_sends_.push_back(std::move(outgoing));
}

// Reports a rank that has ended, once for each rank. Returns false if there is none. The check takes locks in MPI, so
// it is not made at every call.
bool mpi_transport::poll_deaths(control_message& message) {
  const auto now = clock::now();
  if (now - last_death_check_ < mpi_timing::death_poll) return false;
  last_death_check_ = now;
  for (const int rank : ended_ranks(comm_)) {
    if (std::find(reported_deaths_.begin(), reported_deaths_.end(), rank) != reported_deaths_.end()) continue;
    reported_deaths_.push_back(rank);
    last_death_check_ = {};  // the next call checks again at once: more ranks may have ended
    message = control_message::rank_ended(rank, text_of_end(comm_, rank));
    return true;
  }
  return false;
}

bool mpi_transport::poll(control_message& message) {
  if (library_->abandoned() || !library_->allows_this_thread()) return false;
  if (survives_deaths_ && poll_deaths(message)) return true;
  // A probe checks for messages first and makes progress afterwards: a rank that has not called MPI for some time, or
  // that has just found a message, needs several probes to find the next message.
  const auto now = clock::now();
  int turns = now - last_poll_ > std::chrono::milliseconds(1) ? 4 : 1;
  last_poll_ = now;
  int is_available = 0;
  MPI_Status status;
  while (is_available == 0 && turns-- > 0) {
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, control_tag, comm_, &is_available, &status), "MPI_Iprobe", comm_);
  }
  if (is_available == 0) return false;
  check_mpi(MPI_Recv(&message, sizeof message, MPI_BYTE, status.MPI_SOURCE, control_tag, comm_, MPI_STATUS_IGNORE),
            "MPI_Recv", comm_);
  if (message.reports_failure()) failed_senders_.insert(status.MPI_SOURCE);
  last_poll_ = {};
  return true;
}

// MPI can only be polled. Yielding the core is sufficient for the usual duration of a collective. A rank that waits
// longer sleeps, so that it does not use a core while a peer computes. The wait may then end 100 us late.
void mpi_transport::pause(clock::time_point) {
  constexpr int eager_turns = 5000;
  if (++idle_pauses_ < eager_turns) {
    sched_yield();
    return;
  }
  const timespec nap{0, 100'000};
  nanosleep(&nap, nullptr);
}

// Makes a communicator in one blocking call of MPI. Every member has just sent a message, and only members take part,
// but a member may stop during the call.
std::unique_ptr<transport> mpi_transport::subgroup(const subgroup_call& call) {
  library_->check_thread();
  MPI_Group all_ranks = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(comm_, &all_ranks), "MPI_Comm_group", comm_);
  check_mpi(MPI_Group_incl(all_ranks, static_cast<int>(call.members.size()), call.members.data(), &members),
            "MPI_Group_incl");
  MPI_Group_free(&all_ranks);
  const auto result = library_->run_with_deadline(
      [comm = comm_, members, tag = static_cast<int>(call.id % 32768)] {
        MPI_Comm created = MPI_COMM_NULL;
        const int code = MPI_Comm_create_group(comm, members, tag, &created);
        return std::pair(code, created);
      },
      call.deadline);
  if (!result) {
    throw timeout_error("split", {},
                        "a split did not finish in time (MPI waits for a rank that stopped while it made the "
                        "communicator); check the ranks, or raise --timeout / MUSTER_TIMEOUT");
  }
  MPI_Group_free(&members);
  check_mpi(result->first, "MPI_Comm_create_group", comm_);
  return std::make_unique<mpi_transport>(library_, result->second, oversubscribed_);
}

}}}  // namespace muster::v0::detail
