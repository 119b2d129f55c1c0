#include <muster/core/env.hpp>

#include <cstdlib>
#include <muster/comm/comm_settings.hpp>
#include <muster/core/error.hpp>

#include "catch.hpp"
#include "command_line.hpp"

namespace {

struct scoped_variable {
  scoped_variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~scoped_variable() { ::unsetenv(name_); }
  scoped_variable(const scoped_variable&) = delete;
  scoped_variable& operator=(const scoped_variable&) = delete;
  const char* name_;
};

}  // namespace

TEST_CASE("flags are taken out of the command line, in both spellings, and the rest is left") {
  test::command_line line({"app", "--epochs", "3", "--ranks", "4", "file", "--timeout=2.5", "--", "--ranks", "9"});
  const muster::settings settings(line.argc, line.argv());
  CHECK(settings.integer(muster::setting::ranks) == 4);
  CHECK(settings.number(muster::setting::timeout) == 2.5);
  CHECK(settings.value(muster::setting::transport) == "auto");
  CHECK(line.rest() == std::vector<std::string>{"app", "--epochs", "3", "file", "--", "--ranks", "9"});
  CHECK(line.pointers[static_cast<std::size_t>(line.argc)] == nullptr);
}

TEST_CASE("what is off by default is on where its flag stands alone, and takes no flag for its value") {
  test::command_line line({"app", "--elastic", "--ranks", "4", "--checksum", "off", "--pin"});
  const muster::settings settings(line.argc, line.argv());
  CHECK(settings.value(muster::setting::elastic) == "on");
  CHECK(settings.integer(muster::setting::ranks) == 4);
  CHECK(settings.value(muster::setting::checksum) == "off");
  CHECK(settings.value(muster::setting::pin) == "on");
  CHECK(line.rest() == std::vector<std::string>{"app"});

  test::command_line folder({"app", "--flight-recorder"});
  CHECK_THROWS_WITH(muster::settings(folder.argc, folder.argv()),
                    Catch::Matchers::Contains("--flight-recorder needs a value"));

  test::command_line wrong({"app", "--elastic", "onn"});
  const muster::settings typed(wrong.argc, wrong.argv());
  CHECK(typed.value(muster::setting::elastic) == "onn");  // its reader rejects the value
}

TEST_CASE("a flag beats its variable, the variable beats the default, and each says where it came from") {
  const scoped_variable ranks("MUSTER_RANKS", "2");
  const scoped_variable transport("MUSTER_TRANSPORT", "threads");
  test::command_line line({"app", "--ranks", "3"});
  const muster::settings settings(line.argc, line.argv());
  CHECK(settings.value(muster::setting::ranks) == "3");
  CHECK(settings.origin(muster::setting::ranks) == "--ranks");
  CHECK(settings.value(muster::setting::transport) == "threads");
  CHECK(settings.origin(muster::setting::transport) == "MUSTER_TRANSPORT");
  CHECK(settings.is_default(muster::setting::check));
}

TEST_CASE("values that cannot be used are refused by name") {
  test::command_line line({"app", "--ranks", "many", "--timeout", "-1", "--check", "ful"});
  const muster::settings settings(line.argc, line.argv());
  CHECK_THROWS_WITH(settings.integer(muster::setting::ranks), contains("--ranks cannot be 'many'"));
  CHECK_THROWS_WITH(settings.number(muster::setting::timeout), contains("--timeout cannot be '-1'"));
  CHECK_THROWS_WITH(settings.choice(muster::setting::check, {"auto", "full"}), contains("did you mean full?"));

  test::command_line unused({"app", "--heartbeat", "nan", "--servers", "colocated"});
  CHECK_THROWS_WITH(muster::settings(unused.argc, unused.argv()).check_numbers(),
                    contains("--heartbeat cannot be 'nan' (it is a number from 0.001 to 3600)"));

  test::command_line cut({"app", "--ranks"});
  CHECK_THROWS_AS(muster::settings(cut.argc, cut.argv()), muster::configuration_error);
}

TEST_CASE("what a command line asks for instead of a run is told, and stays on it") {
  using question = muster::settings::request;
  using words = std::vector<std::string>;
  const auto [arguments, request, remaining] = GENERATE(table<words, question, std::size_t>({
      {{"app", "file"}, question::none, 2},
      {{"app", "file", "--help"}, question::help, 3},
      {{"app", "-h", "--version"}, question::help, 3},
      {{"app", "--ranks", "2", "--help-all"}, question::help_all, 2},
      {{"app", "--elastic", "--version"}, question::version, 2},
      {{"app", "--", "--version"}, question::none, 3},
      {{"app", "--job", "--version"}, question::none, 1},  // the job has this name
  }));
  test::command_line line(arguments);
  const muster::settings settings(line.argc, line.argv());
  CHECK(settings.requested() == request);
  CHECK(line.rest().size() == remaining);
}

TEST_CASE("a question is answered with the version, or with the program's own usage and the settings below it") {
  using question = muster::settings::request;
  CHECK(muster::output_for(question::none, "usage\n").empty());
  CHECK(muster::output_for(question::version, "usage\n") == "muster " + muster::library_version() + "\n");
  for (const bool all : {false, true}) {
    const auto text = muster::output_for(all ? question::help_all : question::help, "usage\n");
    CHECK(text.starts_with("usage\n"));
    CHECK(text.ends_with(muster::settings_help(all)));
  }
}

TEST_CASE("an unknown argument is refused with what was meant, of the program or of muster") {
  const auto text = [](const char* word) { return std::string(muster::unknown_argument(word, {"--epochs"}).what()); };
  CHECK_THAT(text("--rnaks=4"), contains("'--rnaks=4'") && contains("did you mean --ranks?"));
  CHECK_THAT(text("--epoch"), contains("did you mean --epochs?"));
  CHECK_THAT(text("data.csv"), contains("--help lists all"));
}

TEST_CASE("the help names every setting of every layer that is linked, used or not, with its variable") {
  const std::string common = muster::settings_help(), help = muster::settings_help(true);
  for (const char* flag : {"--transport", "--log-level", "--min-ranks", "--servers", "--optimizer"})
    CHECK(common.find(flag) != std::string::npos);
  CHECK(common.find("--missed-heartbeats") == std::string::npos);
  for (const auto* row : muster::setting_table()) {
    CHECK(help.find("--" + std::string(row->name)) != std::string::npos);
    CHECK(help.find(row->variable()) != std::string::npos);
  }
}
