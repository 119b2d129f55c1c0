#include "transport.hpp"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <deque>
#include <mutex>
#include <utility>

#include <muster/core/error.hpp>

#include "../../timing.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// MPI tags. Collectives have two of their own and match in order; a tagged message says in its envelope where its
// payload comes.
constexpr int notice_tag = 0;
constexpr int head_tag = 1;
constexpr int body_tag = 2;
constexpr int first_tagged = 16;
constexpr std::uint64_t body_tags = 4096;

int mpi_head_tag(std::uint32_t tag) { return tag == 0 ? head_tag : first_tagged + 2 * static_cast<int>(tag); }

// So many bytes in MPI's terms. A count of MPI's is an int: more than that are one element of a type of their own.
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
  // What was begun with the type goes on.
  ~byte_count() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }
  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] MPI_Datatype type() const noexcept { return type_; }

 private:
  int count_ = 1;
  MPI_Datatype type_ = MPI_BYTE;
};

// Whether a message came by what has ended; its status is empty where nothing was under way.
bool brought(int ended, const MPI_Status& status) {
  int cancelled = 0;
  return ended > 0 && status.MPI_SOURCE != MPI_ANY_SOURCE && MPI_Test_cancelled(&status, &cancelled) == MPI_SUCCESS &&
         cancelled == 0;
}

// Memory that MPI may touch until the process ends.
template <class T>
void keep_for_ever(std::vector<T>& memory) {
  static std::deque<std::vector<T>> kept;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(memory));
}

}  // namespace

mpi_transport::mpi_transport(std::shared_ptr<mpi_library> library, MPI_Comm communicator, bool oversubscribed)
    : library_(std::move(library)), comm_(communicator), oversubscribed_(oversubscribed) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  survives_ = mpi_survives_deaths();
}

mpi_transport::~mpi_transport() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised != 0 || library_->abandoned()) {
    // MPI may still read or write all of it.
    keep_for_ever(slots_);
    keep_for_ever(notes_);
    return;
  }
  // A rank that said nothing of its end may never call MPI_Finalize, which would wait for it without a deadline.
  if (told_end_ && static_cast<int>(ends_heard_.size()) < size_ - 1) library_->leave_open();
  const auto until = deadline_after(mpi_timing::cancel);
  for (auto& sent : notes_) {
    int done = 0;
    while (MPI_Test(&sent->sent, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0 && clock::now() < until)
      sched_yield();
    if (done == 0) (void)sent.release();
  }
  take_back_slots();
  if (free_slots_.size() != slots_.size()) keep_for_ever(slots_);  // an operation that never ended still uses one
  if (survives_)
    library_->retire(comm_);
  else
    MPI_Comm_free(&comm_);
}

transport_abilities mpi_transport::abilities() const {
  auto made = mpi_abilities;
  made.concurrent_groups = library_->concurrent();
  made.detects_death = survives_;
  return made;
}

mpi_transport::progress& mpi_transport::begin(request& r, progress::kind what) {
  library_->check_thread();
  if (library_->abandoned()) {
    throw error(error_kind::other,
                "MPI cannot be used any more (an operation of an earlier failure cannot complete); end the program");
  }
  if (free_slots_.empty()) take_back_slots();
  if (free_slots_.empty()) {  // once for the most ever under way
    slots_.push_back(std::make_unique<slot>());
    free_slots_.reserve(slots_.size());
    free_slots_.push_back(slots_.back().get());
  }
  slot* const held = free_slots_.back();
  free_slots_.pop_back();
  r.owner = this;
  return *::new (r.room) progress{what, MPI_REQUEST_NULL, MPI_REQUEST_NULL, held, nullptr, false, nullptr};
}

void mpi_transport::finish(request& r) noexcept {
  free_slots_.push_back(of(r).held);
  r.owner = nullptr;
  idle_ = 0;
}

void mpi_transport::send(request& r) {
  auto& p = begin(r, progress::kind::send);
  const bool small = r.bytes <= inline_limit;
  const int tag = r.tag == 0 ? body_tag : first_tagged + 1 + 2 * static_cast<int>(next_body_++ % body_tags);
  p.held->head() = {r.signature, r.bytes, static_cast<std::uint64_t>(tag)};
  if (small && r.bytes > 0) std::memcpy(p.held->payload(), r.data, r.bytes);
  const std::size_t head_bytes = sizeof(envelope) + (small ? r.bytes : 0);
  check_mpi(
      MPI_Isend(p.held->bytes, static_cast<int>(head_bytes), MPI_BYTE, r.peer, mpi_head_tag(r.tag), comm_, &p.head),
      "MPI_Isend", comm_);
  if (small) return;
  const byte_count body(r.bytes);
  check_mpi(MPI_Isend(r.data, body.count(), body.type(), r.peer, tag, comm_, &p.body), "MPI_Isend", comm_);
}

void mpi_transport::post_body(request& r, int source, int tag) {
  auto& p = of(r);
  if (r.combine != nullptr) p.landing = p.held->land(r.bytes);
  const byte_count body(r.bytes);
  check_mpi(
      MPI_Irecv(p.landing != nullptr ? p.landing : r.data, body.count(), body.type(), source, tag, comm_, &p.body),
      "MPI_Irecv", comm_);
}

void mpi_transport::receive(request& r) {
  auto& p = begin(r, progress::kind::receive);
  const int from = r.peer == any_source ? MPI_ANY_SOURCE : r.peer;
  check_mpi(MPI_Irecv(p.held->bytes, static_cast<int>(slot_size), MPI_BYTE, from, mpi_head_tag(r.tag), comm_, &p.head),
            "MPI_Irecv", comm_);
  if (r.tag == 0 && r.bytes > inline_limit) post_body(r, r.peer, body_tag);
}

bool mpi_transport::test_receive(request& r) {
  auto& p = of(r);
  int done = 0;
  if (!p.head_done) {
    MPI_Status status;
    check_mpi(MPI_Test(&p.head, &done, &status), "MPI_Test", comm_);
    if (done == 0) return false;
    p.head_done = true;
    const envelope& head = p.held->head();
    r.source = status.MPI_SOURCE;
    r.received = head.bytes;
    check_arrival(r, r.source, head.signature, head.bytes);
    if (head.bytes <= inline_limit) {
      deliver(r, p.held->payload(), head.bytes);
    } else if (r.tag != 0) {
      post_body(r, r.source, static_cast<int>(head.body_tag));
    }
  }
  if (r.received > inline_limit) {
    check_mpi(MPI_Test(&p.body, &done, MPI_STATUS_IGNORE), "MPI_Test", comm_);
    if (done == 0) return false;
    if (p.landing != nullptr) deliver(r, p.landing, r.received);
  }
  return true;
}

bool mpi_transport::test(request& r) {
  if (r.owner == nullptr) return true;
  auto& p = of(r);
  if (p.what == progress::kind::receive) {
    if (!test_receive(r)) return false;
  } else {
    int done = 0;
    check_mpi(MPI_Test(&p.head, &done, MPI_STATUS_IGNORE), "MPI_Test", comm_);
    if (done == 0) return false;
    check_mpi(MPI_Test(&p.body, &done, MPI_STATUS_IGNORE), "MPI_Test", comm_);
    if (done == 0) return false;
    if (p.landing != nullptr && r.bytes > 0) std::memcpy(r.data, p.landing, r.bytes);
    if (p.reduce != nullptr) p.reduce->finish(r.data, r.bytes, size_);
  }
  finish(r);
  return true;
}

void mpi_transport::cancel(request& r) noexcept {
  auto& p = of(r);
  r.owner = nullptr;
  if (library_->abandoned()) return;
  const bool receiving = p.what == progress::kind::receive;
  for (MPI_Request* one : {&p.head, &p.body}) {
    if (receiving && *one != MPI_REQUEST_NULL) MPI_Cancel(one);  // sends and collectives cannot be cancelled
  }
  int heads = 0;
  int bodies = 0;
  MPI_Status head{};
  MPI_Status body{};
  const auto ends_in_time = [&] {
    const auto until = deadline_after(mpi_timing::cancel);
    for (;;) {
      if (heads == 0 && MPI_Test(&p.head, &heads, &head) != MPI_SUCCESS) heads = -1;
      if (bodies == 0 && MPI_Test(&p.body, &bodies, &body) != MPI_SUCCESS) bodies = -1;
      if (heads != 0 && bodies != 0) return true;
      if (clock::now() >= until) return false;
      sched_yield();
    }
  };
  if (ends_in_time()) {
    const bool has_head = receiving && r.tag != 0 && (p.head_done || brought(heads, head));
    if (has_head && p.held->head().bytes > inline_limit && !brought(bodies, body))
      return drop_body(*p.held, p.head_done ? r.source : head.MPI_SOURCE);
    return finish(r);
  }
  // A send that no rank receives only reads, and no caller asks for it any more; its slot stays taken. A native
  // collective in our memory may go on there. Anything else may yet write into memory that is about to be given back.
  const bool harmless = p.what == progress::kind::send || (p.what == progress::kind::native && p.landing != nullptr);
  if (harmless) return;
  if (survives_) {  // a communicator that is given up ends all that goes on in it, and control messages that are under
                    // way
    revoke(comm_);
    if (ends_in_time()) return finish(r);
  }
  library_->abandon();
}

// The body of a tagged message whose envelope was taken comes all the same, and tags of bodies are used again: it must
// not be taken for that of a later message.
void mpi_transport::drop_body(slot& held, int source) noexcept {
  try {
    const envelope& head = held.head();
    const byte_count body(head.bytes);
    check_mpi(MPI_Irecv(held.land(head.bytes), body.count(), body.type(), source, static_cast<int>(head.body_tag),
                        comm_, &held.dropped),
              "MPI_Irecv", comm_);
  } catch (...) {  // without memory, or without a communicator
    free_slots_.push_back(&held);
  }
}

// Those into which a body has come that no request waited for.
void mpi_transport::take_back_slots() noexcept {
  for (const auto& one : slots_) {
    int done = 0;
    if (one->dropped == MPI_REQUEST_NULL) continue;
    if (MPI_Test(&one->dropped, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0) free_slots_.push_back(one.get());
  }
}

void mpi_transport::notify(int peer, const control_message& message) {
  // What is under way when a communicator is freed might come by the next: see mpi_library::retire.
  const bool comes_late = message.what == control_message::kind::leave && !survives_;
  if (library_->abandoned() || comes_late) return;
  told_end_ = told_end_ || message.is_end();
  std::erase_if(notes_, [](const auto& sent) {
    int done = 0;
    return MPI_Test(&sent->sent, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  });
  auto sent = std::make_unique<note>();  // out of the ordinary: control messages are about trouble
  sent->text = message;
  sent->text.origin = rank_;
  check_mpi(MPI_Isend(&sent->text, sizeof(control_message), MPI_BYTE, peer, notice_tag, comm_, &sent->sent),
            "MPI_Isend", comm_);
  notes_.push_back(std::move(sent));
}

// Tells of a rank that has ended, once for each. Asking takes locks in MPI, so not at every turn.
bool mpi_transport::tell_of_death(control_message& message) {
  const auto now = clock::now();
  if (now - last_look_ < mpi_timing::death_poll) return false;
  last_look_ = now;
  for (const int rank : ended_ranks(comm_)) {
    if (std::find(ended_.begin(), ended_.end(), rank) != ended_.end()) continue;
    ended_.push_back(rank);
    last_look_ = {};  // there may be more
    message = control_message::gone_rank(rank, text_of_end(comm_, rank));
    return true;
  }
  return false;
}

bool mpi_transport::poll(control_message& message) {
  if (library_->abandoned()) return false;
  if (survives_ && tell_of_death(message)) return true;
  // A probe looks first and makes progress after: a rank that was away from MPI, or that just found something, needs
  // some turns before it sees what else came.
  const auto now = clock::now();
  int turns = now - last_poll_ > std::chrono::milliseconds(1) ? 4 : 1;
  last_poll_ = now;
  int there = 0;
  MPI_Status status;
  while (there == 0 && turns-- > 0) {
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, notice_tag, comm_, &there, &status), "MPI_Iprobe", comm_);
  }
  if (there == 0) return false;
  check_mpi(MPI_Recv(&message, sizeof message, MPI_BYTE, status.MPI_SOURCE, notice_tag, comm_, MPI_STATUS_IGNORE),
            "MPI_Recv", comm_);
  if (message.is_end()) ends_heard_.insert(status.MPI_SOURCE);
  last_poll_ = {};
  return true;
}

// MPI can only be polled. Giving the processor away is enough for as long as a collective usually takes; a rank that
// waits for longer than that sleeps, so that it does not burn a core while a peer computes: at most 100 us later is the
// price.
void mpi_transport::pause(clock::time_point) {
  constexpr int eager_turns = 5000;
  if (++idle_ < eager_turns) {
    sched_yield();
    return;
  }
  const timespec nap{0, 100'000};
  nanosleep(&nap, nullptr);
}

// MPI makes a communicator in one call that blocks. Every member has just been heard from and only members take part,
// but one of them may stop amid it.
std::unique_ptr<transport> mpi_transport::subgroup(const subgroup_call& some) {
  library_->check_thread();
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(comm_, &all), "MPI_Comm_group", comm_);
  check_mpi(MPI_Group_incl(all, static_cast<int>(some.members.size()), some.members.data(), &members),
            "MPI_Group_incl");
  MPI_Group_free(&all);
  const auto ended = library_->in_time(
      [comm = comm_, members, tag = static_cast<int>(some.id % 32768)] {
        MPI_Comm made = MPI_COMM_NULL;
        const int code = MPI_Comm_create_group(comm, members, tag, &made);
        return std::pair(code, made);
      },
      some.until);
  if (!ended) {
    throw timeout_error("split", {},
                        "a split did not finish in time (MPI waits for a rank that stopped as it made the "
                        "communicator); look at what the ranks do, or raise --timeout / MUSTER_TIMEOUT");
  }
  MPI_Group_free(&members);
  check_mpi(ended->first, "MPI_Comm_create_group", comm_);
  return std::make_unique<mpi_transport>(library_, ended->second, oversubscribed_);
}

}}}  // namespace muster::v0::detail
