// muster-store: serves the store of a job, or of several that name different ones, from a process of its own.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <string>

#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>

namespace {

constexpr const char* usage =
    "usage: muster-store --listen ADDRESS [--data FOLDER] [--file FILE] [--unused SECONDS]\n"
    "  --listen ADDRESS  address and port: 10.0.0.1:29500, :29500 (all interfaces), 127.0.0.1:0 (a free port)\n"
    "  --data FOLDER     keeps the table in this folder, and continues with it after a restart\n"
    "  --file FILE       writes its address and token to this file, for this user alone; removes it at the end\n"
    "  --unused SECONDS  ends after so long without a client (0 to 1000000); 0, the default: never\n"
    "\n"
    "Ranks connect with --rendezvous tcp://HOST:PORT. MUSTER_TOKEN, if set, is the same at the store and the ranks.\n"
    "It prints the address at which it listens, and ends with 0 after SIGTERM or SIGINT.\n";

constexpr muster::number_range<double> unused{0, 1e6};

struct plan {
  std::string listen;
  std::string data;
  std::string file;
  double unused = 0;
};

[[noreturn]] void refuse(const std::string& text) {
  throw muster::configuration_error(text + "; see muster-store --help");
}

plan read_plan(int argc, char** argv) {
  plan read;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag(argv[i]);
    const bool known = flag == "--listen" || flag == "--data" || flag == "--file" || flag == "--unused";
    if (!known) refuse("muster-store does not know '" + flag + "' (it has four flags)");
    if (i + 1 == argc) refuse(flag + " needs a value (it is the last word)");
    const std::string value(argv[i + 1]);
    if (flag == "--listen") read.listen = value;
    if (flag == "--data") read.data = value;
    if (flag == "--file") read.file = value;
    if (flag == "--unused") read.unused = muster::number_from(flag, value, unused);
  }
  if (read.listen.empty()) refuse("muster-store needs --listen (an address for the ranks to connect to)");
  return read;
}

int serve(const plan& what, const std::string& token, const sigset_t& ends) {
  muster::store_server server(what.listen, token, what.data);
  if (!what.file.empty()) server.announce(what.file);
  std::printf("muster-store listens at %s\n", server.address().c_str());
  std::fflush(stdout);
  auto used = std::chrono::steady_clock::now();
  for (;;) {
    const timespec turn{0, 200'000'000};
    if (::sigtimedwait(&ends, nullptr, &turn) > 0) return 0;
    if (server.has_ended()) return 1;  // the log has said why
    const auto now = std::chrono::steady_clock::now();
    if (server.met().present > 0) used = now;
    if (what.unused > 0 && now - used > std::chrono::duration<double>(what.unused)) return 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    sigset_t ends;  // blocked before any thread is there
    ::sigemptyset(&ends);
    for (const int one : {SIGTERM, SIGINT}) ::sigaddset(&ends, one);
    ::sigprocmask(SIG_BLOCK, &ends, nullptr);
    const muster::settings configuration(argc, argv);
    if (const auto asked = configuration.asks(); asked != muster::settings::question::none) {
      const bool of_version = asked == muster::settings::question::version;
      std::fputs(of_version ? muster::answer_to(asked, {}).c_str() : usage, stdout);
      return 0;
    }
    const auto& token = configuration.value(muster::setting::token);
    return serve(read_plan(argc, argv), token == "auto" ? "" : token, ends);
  } catch (const std::exception& failed) {
    std::fprintf(stderr, "muster-store: error: %s\n", failed.what());
    return muster::exit_status_of(std::current_exception());
  }
}
