// What the command lines of the examples share: one line for what is wrong with them.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace examples {

[[noreturn]] inline void refuse(const std::string& problem, const std::string& suggestion) {
  throw muster::configuration_error(problem + "; " + suggestion);
}

// More of these no program here could work through.
constexpr muster::number_range<std::uint64_t> some_epochs{1, 1'000'000}, some_steps{1, 1'000'000'000'000};
constexpr muster::number_range<std::uint64_t> some_samples{1, 1'000'000'000};
constexpr muster::number_range<std::uint64_t> any_seed{0, std::numeric_limits<std::uint64_t>::max()};

/// As CLI11 parses it; the flags of muster have been taken out by the context. Throws muster::configuration_error.
inline void parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    std::vector<std::string> known;
    for (const auto* option : app.get_options()) known.push_back(option->get_name());
    for (const auto* row : muster::setting_table()) known.push_back("--" + std::string(row->name));
    const std::string word = app.remaining().front();
    const auto meant = muster::closest(word.substr(0, word.find('=')), known);
    refuse("unknown argument '" + word + "' (neither a flag of this program nor one of muster)",
           meant ? "did you mean " + *meant + "?" : "--help lists all");
  } catch (const CLI::ParseError& error) {
    std::string why = error.what();
    std::replace(why.begin(), why.end(), '\n', ' ');
    while (why.ends_with(' ')) why.pop_back();
    refuse("bad command line (" + why + ")", "--help lists all flags");
  }
}

}  // namespace examples
