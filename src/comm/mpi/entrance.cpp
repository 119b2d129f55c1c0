// By MPI_Comm_accept and MPI_Comm_connect: the newcomer is the one that opens a port and accepts, since it can wait for
// as long as it takes; the others connect when they know that it does, so that no death of theirs leaves them waiting.
#include "entrance.hpp"

#ifdef MUSTER_HAVE_ULFM

#include <mpi-ext.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds between_looks{2};
constexpr int root = 0;

// What the first of those that are in knows of the newcomer.
struct invitation {
  admission::outcome what = admission::outcome::given_up;
  std::array<char, MPI_MAX_PORT_NAME> port{};
};
static_assert(std::is_trivially_copyable_v<invitation>);

// Ports that were tried: whoever waits there has failed, and will say another. Of the thread that connects.
std::vector<std::string>& tried_ports() {
  static std::vector<std::string> ports;
  return ports;
}

bool was_tried(const char* port) {
  const auto& ports = tried_ports();
  return std::find(ports.begin(), ports.end(), port) != ports.end();
}

invitation look_for(const std::string& name, const std::function<bool()>& given_up, clock::time_point until) {
  constexpr seconds to_say_another{2.0};
  invitation found;
  std::optional<clock::time_point> tried_since;
  for (;;) {
    if (MPI_Lookup_name(name.c_str(), MPI_INFO_NULL, found.port.data()) == MPI_SUCCESS) {
      if (!was_tried(found.port.data())) {
        found.what = admission::outcome::in;
        return found;
      }
      if (!tried_since) tried_since = clock::now();
      if (clock::now() - *tried_since > to_say_another) {
        found.what = admission::outcome::stuck;
        return found;
      }
    }
    if (given_up()) return found;
    if (clock::now() >= until) {
      found.what = admission::outcome::absent;
      return found;
    }
    std::this_thread::sleep_for(between_looks);
  }
}

bool all_agree(MPI_Comm those, bool fine) {
  int flag = fine ? 1 : 0;
  return MPIX_Comm_agree(those, &flag) == MPI_SUCCESS && flag != 0;
}

// One communicator of both sides of another, which is given back.
std::optional<MPI_Comm> merged(mpi_library& library, MPI_Comm sides, bool is_new) {
  MPI_Comm_set_errhandler(sides, MPI_ERRORS_RETURN);
  MPI_Comm all = MPI_COMM_NULL;
  const int code = MPI_Intercomm_merge(sides, is_new ? 1 : 0, &all);
  library.retire(sides);
  if (code != MPI_SUCCESS || all == MPI_COMM_NULL) return std::nullopt;
  MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
  return all;
}

// After a communicator whose making failed Open MPI 5.0 makes no other from one of a higher number, and waits for ever
// (ompi_comm_cid_lowest_id, ompi/communicator/comm_cid.c): one of a lower number, made well, ends that.
void free_number_lock(mpi_library& library) {
  MPI_Comm made = MPI_COMM_NULL;
  if (MPI_Comm_dup(MPI_COMM_SELF, &made) == MPI_SUCCESS) library.retire(made);
}

}  // namespace

std::optional<MPI_Comm> enter(mpi_library& library, const std::string& name) {
  char port[MPI_MAX_PORT_NAME] = {};
  if (MPI_Open_port(MPI_INFO_NULL, port) != MPI_SUCCESS) return std::nullopt;
  MPI_Comm sides = MPI_COMM_NULL;
  int code = MPI_Publish_name(name.c_str(), MPI_INFO_NULL, port);
  if (code == MPI_SUCCESS) {
    code = MPI_Comm_accept(port, MPI_INFO_NULL, root, MPI_COMM_SELF, &sides);
    MPI_Unpublish_name(name.c_str(), MPI_INFO_NULL, port);
  }
  MPI_Close_port(port);
  if (code != MPI_SUCCESS) {
    free_number_lock(library);
    return std::nullopt;
  }
  const auto all = merged(library, sides, true);
  if (!all) {
    throw error(error_kind::other,
                "this process was about to join over MPI and is connected to some of the others only (one of them died "
                "meanwhile); start it again");
  }
  (void)all_agree(*all, true);  // that it has come about; who has died since is seen when the group is made
  return all;
}

admission take_in(mpi_library& library, MPI_Comm those, const std::string& name, const std::function<bool()>& given_up,
                  clock::time_point until, std::atomic<bool>& at_the_door) {
  int rank = 0;
  MPI_Comm_rank(those, &rank);
  invitation found;
  if (rank == root) found = look_for(name, given_up, until);
  const int code = MPI_Bcast(&found, sizeof found, MPI_BYTE, root, those);
  // Nobody connects alone: the others would be waited for.
  if (!all_agree(those, code == MPI_SUCCESS)) return {};
  if (found.what != admission::outcome::in) return {found.what, MPI_COMM_NULL};
  tried_ports().emplace_back(found.port.data());

  MPI_Comm sides = MPI_COMM_NULL;
  at_the_door = true;
  const int connected = MPI_Comm_connect(found.port.data(), MPI_INFO_NULL, root, those, &sides);
  std::optional<MPI_Comm> all;
  if (connected == MPI_SUCCESS) all = merged(library, sides, false);
  const bool is_in = all_agree(those, all.has_value());
  at_the_door = false;
  if (!is_in) {
    if (all) {
      MPIX_Comm_revoke(*all);
      library.retire(*all);
    }
    free_number_lock(library);
    return {};
  }
  (void)all_agree(*all, true);
  return {admission::outcome::in, *all};
}

}  // namespace muster::inline v0::detail

#endif
