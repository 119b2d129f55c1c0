#include <muster/comm/bootstrap/stores/tcp/pmix.hpp>

#ifdef MUSTER_HAVE_PMIX
#include <dlfcn.h>
#include <pmix.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster { inline namespace v0 { namespace detail {
namespace {

// libpmix, loaded at run time. A program therefore needs no libpmix unless PMIx is used, and it uses the same library
// as its MPI. The library stays loaded.
struct library {
  library() {
    void* const handle = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto& function, const char* name) {
      void* const found = handle != nullptr ? ::dlsym(handle, name) : nullptr;
      if (found == nullptr) throw error(error_kind::other, ::dlerror());
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
    find(init, "PMIx_Init");
    find(finalize, "PMIx_Finalize");
    find(put, "PMIx_Put");
    find(commit, "PMIx_Commit");
    find(fence, "PMIx_Fence_nb");
    find(get, "PMIx_Get_nb");
    find(explain, "PMIx_Error_string");
  }

  decltype(&::PMIx_Init) init = nullptr;
  decltype(&::PMIx_Finalize) finalize = nullptr;
  decltype(&::PMIx_Put) put = nullptr;
  decltype(&::PMIx_Commit) commit = nullptr;
  decltype(&::PMIx_Fence_nb) fence = nullptr;
  decltype(&::PMIx_Get_nb) get = nullptr;
  decltype(&::PMIx_Error_string) explain = nullptr;
};

struct outcome {
  pmix_status_t status;
  std::string text;
};

// Called by PMIx's own thread, possibly after the caller has stopped waiting.
extern "C" void muster_pmix_done(pmix_status_t status, void* user_data) {
  const std::unique_ptr<std::promise<outcome>> waits(static_cast<std::promise<outcome>*>(user_data));
  waits->set_value({status, {}});
}
extern "C" void muster_pmix_got(pmix_status_t status, pmix_value_t* value, void* user_data) {
  const std::unique_ptr<std::promise<outcome>> waits(static_cast<std::promise<outcome>*>(user_data));
  const bool is_text = status == PMIX_SUCCESS && value != nullptr && value->type == PMIX_STRING;
  waits->set_value({status, is_text ? value->data.string : ""});
}

// Returns the number of earlier calls in this process. A key of PMIx cannot be put twice, and the plug-ins of a
// program, which may each contain muster, share PMIx and the environment. A child process inherits the variable, and
// counts anew.
int next_number() {
  constexpr const char* variable = "PMIX_KEYS_OF_MUSTER";
  const std::string process = std::to_string(::getpid()) + ":";
  const std::string counted = environment(variable).value_or("");
  const int number = counted.starts_with(process) ? parse_number<int>(counted.substr(process.size())).value_or(0) : 0;
  ::setenv(variable, (process + std::to_string(number + 1)).c_str(), 1);
  return number;
}

class session {
 public:
  session() {
    const pmix_status_t status = pmix_.init(&self_, nullptr, 0);
    if (status != PMIX_SUCCESS) throw error(error_kind::other, std::string("PMIx_Init: ") + pmix_.explain(status));
  }
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session() { pmix_.finalize(nullptr, 0); }

  [[nodiscard]] int rank() const noexcept { return static_cast<int>(self_.rank); }

  // Returns the text of rank 0 at every rank.
  [[nodiscard]] std::string share(const std::string& text, clock::time_point until) const {
    const std::string key = "muster.rank0." + std::to_string(next_number());
    if (self_.rank == 0) {
      pmix_value_t value{};
      value.type = PMIX_STRING;
      value.data.string = const_cast<char*>(text.c_str());  // only copied; the C type has no const
      check(pmix_.put(PMIX_GLOBAL, key.c_str(), &value), "PMIx_Put");
      check(pmix_.commit(), "PMIx_Commit");
    }
    pmix_info_t collect{};
    std::strncpy(collect.key, PMIX_COLLECT_DATA, sizeof collect.key - 1);
    collect.value.type = PMIX_BOOL;
    collect.value.data.flag = true;
    call("PMIx_Fence", until,
         [&](void* user_data) { return pmix_.fence(nullptr, 0, &collect, 1, muster_pmix_done, user_data); });
    pmix_proc_t first = self_;
    first.rank = 0;
    return call("PMIx_Get", until, [&](void* user_data) {
      return pmix_.get(&first, key.c_str(), nullptr, 0, muster_pmix_got, user_data);
    });
  }

 private:
  void check(pmix_status_t status, const char* function) const {
    if (status == PMIX_SUCCESS) return;
    throw error(error_kind::other, std::string("a call of the launcher's PMIx failed (") + function + ": " +
                                       pmix_.explain(status) + "); set --rendezvous tcp://HOST:PORT");
  }

  template <class Start>
  std::string call(const char* function, clock::time_point until, const Start& start) const {
    auto waits = std::make_unique<std::promise<outcome>>();
    auto future = waits->get_future();
    const pmix_status_t status = start(waits.get());
    if (status == PMIX_OPERATION_SUCCEEDED) return {};  // completed at once; the callback is not called
    check(status, function);
    (void)waits.release();  // now owned by the callback
    if (future.wait_until(until) != std::future_status::ready) {
      throw timeout_error(function, {},
                          std::string("not all ranks called ") + function +
                              " in time (PMIx does not name the missing ranks); look at the other ranks, or raise "
                              "--timeout / MUSTER_TIMEOUT");
    }
    auto result = future.get();
    check(result.status, function);
    return std::move(result.text);
  }

  library pmix_;
  pmix_proc_t self_{};
};

}  // namespace

std::optional<std::string> share_by_pmix(int rank, const std::function<std::string()>& text_of_first,
                                         clock::time_point until, std::string& why_not) {
  // Ended when the process ends, and not before: an MPI that begins after an end of PMIx finds PMIx in an unusable
  // state. PMIx must be ended, because mpirun takes a missing end for a crash.
  static std::unique_ptr<session> opened;
  try {
    if (!opened) opened = std::make_unique<session>();
  } catch (const error& failed) {
    why_not = failed.what();
    return std::nullopt;
  }
  if (opened->rank() != rank) {
    why_not = "PMIx numbers this rank " + std::to_string(opened->rank()) + ", the launcher " + std::to_string(rank);
    return std::nullopt;
  }
  return opened->share(rank == 0 ? text_of_first() : "", until);
}

}}}  // namespace muster::v0::detail

#else

namespace muster { inline namespace v0 { namespace detail {

std::optional<std::string> share_by_pmix(int, const std::function<std::string()>&, clock::time_point,
                                         std::string& why_not) {
  why_not = "this muster was built without PMIx; Debian has it in libpmix-dev";
  return std::nullopt;
}

}}}  // namespace muster::v0::detail

#endif
