#include "pmix.hpp"

#ifdef MUSTER_HAVE_PMIX
#include <dlfcn.h>
#include <pmix.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {
namespace {

// Not linked, so that a program needs no libpmix where nothing speaks PMIx, and uses the very one that its MPI does.
struct library {
  decltype(&::PMIx_Init) init = nullptr;
  decltype(&::PMIx_Finalize) finalize = nullptr;
  decltype(&::PMIx_Put) put = nullptr;
  decltype(&::PMIx_Commit) commit = nullptr;
  decltype(&::PMIx_Fence_nb) fence = nullptr;
  decltype(&::PMIx_Get_nb) get = nullptr;
  decltype(&::PMIx_Error_string) explain = nullptr;

  // Null, and why, when it cannot be loaded. It stays loaded.
  static const library* load(std::string& why_not) {
    static std::string trouble;
    static const std::optional<library> loaded = [] {
      std::optional<library> made;
      void* const handle = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
      const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
        return function != nullptr;
      };
      library whole;
      const bool found = handle != nullptr && find(whole.init, "PMIx_Init") && find(whole.finalize, "PMIx_Finalize") &&
                         find(whole.put, "PMIx_Put") && find(whole.commit, "PMIx_Commit") &&
                         find(whole.fence, "PMIx_Fence_nb") && find(whole.get, "PMIx_Get_nb") &&
                         find(whole.explain, "PMIx_Error_string");
      if (found) {
        made = whole;
      } else {
        const char* const text = ::dlerror();
        trouble = text != nullptr ? text : "libpmix.so.2 lacks what is needed";
      }
      return made;
    }();
    if (!loaded) why_not = trouble;
    return loaded ? &*loaded : nullptr;
  }
};

// What PMIx's own thread leaves of a call; shared, because it may come when the caller no longer waits for it.
struct outcome {
  std::mutex mutex;
  std::condition_variable came;
  std::optional<pmix_status_t> status;
  std::string text;

  void set(pmix_status_t code, const pmix_value_t* value) {
    const std::lock_guard held(mutex);
    status = code;
    if (code == PMIX_SUCCESS && value != nullptr && value->type == PMIX_STRING) text = value->data.string;
    came.notify_all();
  }
  std::optional<pmix_status_t> await(clock::time_point until) {
    std::unique_lock held(mutex);
    came.wait_until(held, until, [this] { return status.has_value(); });
    return status;
  }
};
using ticket = std::shared_ptr<outcome>;

extern "C" void muster_pmix_done(pmix_status_t status, void* data) {
  const std::unique_ptr<ticket> owner(static_cast<ticket*>(data));
  (*owner)->set(status, nullptr);
}
extern "C" void muster_pmix_got(pmix_status_t status, pmix_value_t* value, void* data) {
  const std::unique_ptr<ticket> owner(static_cast<ticket*>(data));
  (*owner)->set(status, value);
}

class real_session final : public pmix_session {
 public:
  real_session(const library& functions, const pmix_proc_t& self) : pmix_(functions), self_(self) {}
  ~real_session() override { pmix_.finalize(nullptr, 0); }

  [[nodiscard]] int rank() const noexcept override { return static_cast<int>(self_.rank); }

  [[nodiscard]] std::string share(const std::string& text, clock::time_point until) override {
    static int shared = 0;  // what was put is not put again: each time under a key of its own, the same at all ranks
    const std::string key = "muster.rank0." + std::to_string(shared++);
    if (self_.rank == 0) {
      pmix_value_t value{};
      value.type = PMIX_STRING;
      value.data.string = const_cast<char*>(text.c_str());  // it is copied; C has no other type for it
      check(pmix_.put(PMIX_GLOBAL, key.c_str(), &value), "PMIx_Put");
      check(pmix_.commit(), "PMIx_Commit");
    }
    pmix_info_t collect{};
    std::strncpy(collect.key, PMIX_COLLECT_DATA, sizeof collect.key - 1);
    collect.value.type = PMIX_BOOL;
    collect.value.data.flag = true;
    call("PMIx_Fence", until, [&](void* data) { return pmix_.fence(nullptr, 0, &collect, 1, muster_pmix_done, data); });
    pmix_proc_t first = self_;
    first.rank = 0;
    return call("PMIx_Get", until,
                [&](void* data) { return pmix_.get(&first, key.c_str(), nullptr, 0, muster_pmix_got, data); });
  }

 private:
  void check(pmix_status_t status, const char* what) const {
    if (status == PMIX_SUCCESS) return;
    throw error(error_kind::other, std::string("a call of the launcher's PMIx failed (") + what + ": " +
                                       pmix_.explain(status) + "); set --rendezvous tcp://HOST:PORT");
  }

  template <class Start>
  std::string call(const char* what, clock::time_point until, const Start& start) const {
    const auto done = std::make_shared<outcome>();
    auto data = std::make_unique<ticket>(done);
    const pmix_status_t begun = start(data.get());
    if (begun == PMIX_OPERATION_SUCCEEDED) return {};  // at once, and the callback will not be called
    check(begun, what);
    (void)data.release();  // the callback's
    const auto status = done->await(until);
    if (!status) {
      throw timeout_error(what, {},
                          std::string("not all ranks called ") + what +
                              " in time (PMIx does not name the missing ranks); look at the other ranks, or raise "
                              "--timeout / MUSTER_TIMEOUT");
    }
    check(*status, what);
    return done->text;
  }

  const library& pmix_;
  pmix_proc_t self_;
};

}  // namespace

pmix_session* pmix_session::open(std::string& why_not) {
  // Ended when the process ends, not before: an MPI that begins after an end finds PMIx in a state it cannot use. Not
  // at all would not do either: mpirun takes that for a crash.
  static std::unique_ptr<pmix_session> opened;
  if (opened) return opened.get();
  const library* const functions = library::load(why_not);
  if (functions == nullptr) return nullptr;
  pmix_proc_t self{};
  const pmix_status_t status = functions->init(&self, nullptr, 0);
  if (status != PMIX_SUCCESS) {
    why_not = std::string("PMIx_Init: ") + functions->explain(status);
    return nullptr;
  }
  opened = std::make_unique<real_session>(*functions, self);
  return opened.get();
}

}  // namespace muster::inline v0::detail

#else

namespace muster::inline v0::detail {

pmix_session* pmix_session::open(std::string& why_not) {
  why_not = "this muster was built without PMIx; Debian has it in libpmix-dev";
  return nullptr;
}

}  // namespace muster::inline v0::detail
#endif
