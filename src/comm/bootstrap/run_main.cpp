// The whole of a program's main: what goes wrong is one line of one rank, and one status at every rank.
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <muster/comm/context.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>

#include "rank_threads.hpp"
#include "transport_choice.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

std::string_view name_of(const char* program) {
  std::string_view name(program == nullptr ? "muster" : program);
  name.remove_prefix(name.find_last_of('/') + 1);  // npos + 1 is 0
  return name;
}

void say(const char* program, const std::string& text) {
  const std::string line = std::string(name_of(program)) + ": error: " + text + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::string usage_of(const char* program, const main_options& how) {
  return how.help ? how.help() : "usage: " + std::string(name_of(program)) + " [flags of muster]\n";
}

// As far as it can be told when something else on the command line is wrong: ranks that are in order meet over it.
std::string transport_asked_for(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    if (word.starts_with("--transport=")) return std::string(word.substr(word.find('=') + 1));
    if (word == "--transport" && i + 1 < argc) return argv[i + 1];
  }
  return environment("MUSTER_TRANSPORT").value_or("auto");
}

// A bad flag or variable is found by all ranks before they are connected. They connect for this alone, so that one line
// says it and not one a rank.
context::outcome settle_without_context(std::exception_ptr failure, const std::string& transport,
                                        const main_options& how, bool connected) noexcept {
  // A rank that could not connect would only wait for the same ranks again.
  const bool is_early = exit_status_of(failure) == static_cast<int>(error_kind::configuration);
  if (!is_early) return {exit_status_of(failure), true, describe(failure)};
  try {
    if (connected) return {exit_status_of(failure), detect_launch().rank == 0, describe(failure)};  // they are told
    if (how.connect) {
      group world(how.connect(), {});
      return settle_world(world, failure);
    }
    const launch_env launch = detect_launch();
    const settings from_environment;
    transport_choice chosen;
    try {
      chosen = choose_transport(from_environment, launch, transport);
    } catch (const configuration_error&) {  // perhaps what is wrong is just that
      chosen = choose_transport(from_environment, launch, "auto");
    }
    const bool elastic = from_environment.value(setting::elastic) == "on";  // these do without the others
    if (launch.size > 1 && !elastic) {
      group world(connect_processes(chosen, from_environment, launch), {});
      return settle_world(world, failure);
    }
  } catch (...) {  // then each speaks for itself
  }
  return {exit_status_of(failure), true, describe(failure)};
}

}  // namespace

int run_main(int& argc, char** argv, const main_options& how, bool has_own_words,
             const std::function<int(context&)>& body) noexcept {
  const char* const program = argc > 0 ? argv[0] : nullptr;
  const std::string transport = transport_asked_for(argc, argv);
  bool connected = false;  // by the program
  try {
    settings chosen(argc, argv);
    if (const auto asked = chosen.asks(); asked != settings::question::none) {
      if (detect_launch().rank == 0) std::fputs(answer_to(asked, usage_of(program, how)).c_str(), stdout);
      return 0;
    }
    if (!has_own_words && argc > 1) throw unknown_argument(argv[1]);
    std::optional<context> made;
    if (how.connect) {
      auto transport_of_program = how.connect();
      connected = true;
      made.emplace(std::move(transport_of_program), std::move(chosen));
    } else {
      made.emplace(std::move(chosen));
    }
    std::exception_ptr failure;
    int status = 0;
    try {
      status = body(*made);
    } catch (...) {
      failure = std::current_exception();
    }
    const auto agreed = made->settle(failure);
    if (!agreed.text.empty() && agreed.speaker) say(program, agreed.text);
    return agreed.status != 0 ? agreed.status : status;
  } catch (...) {
    const auto agreed = settle_without_context(std::current_exception(), transport, how, connected);
    if (agreed.speaker) say(program, agreed.text);
    return agreed.status;
  }
}

}}}  // namespace muster::v0::detail
