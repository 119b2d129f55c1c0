// muster-data: converts data of any kind to muster's own format of records or to Parquet, describes a source, reads all
// records of a source to verify them, and distributes records to other files or to shards.
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>
#include <muster/data/open.hpp>
#include <muster/train/checkpoint.hpp>

#include "command_line.hpp"
#include "data_work.hpp"
#include "run_program.hpp"
#include "source_description.hpp"

namespace {

constexpr const char* description =
    "Converts, inspects, verifies, reshards and shards training data, and exports parameters.\n"
    "Exit status: 0 success, 1 an unexpected error, 2 the command line or a folder that cannot be written, 3 data\n"
    "that cannot be read (verify: also if only some records cannot; inspect: if none can).";

std::string sources_help() {
  std::string text = "SOURCE is SCHEME:PATH, or SCHEME:PATH?OPTION=VALUE&OPTION=VALUE (quote it for the shell):\n";
  for (const auto& source : muster::source_table()) {
    text += "  " + std::string(source.scheme) + ":" + std::string(source.placeholder) +
            (source.options.empty() ? "" : "?" + std::string(source.options)) + "\n      " + std::string(source.help) +
            "\n";
  }
  return text + "A path alone stands for records:PATH.";
}

constexpr muster::number_range<std::uint64_t> any_number{0, std::numeric_limits<std::uint64_t>::max()};
constexpr int bad_data = static_cast<int>(muster::error_kind::data);
constexpr std::uint64_t most_file_bytes = std::uint64_t{1} << 50;
constexpr std::size_t most_block_bytes = std::size_t{1} << 30;  // Limit of the format.

struct command_line {
  copy_request copy;
  std::string source;
  std::string policy = "fail";
  std::uint64_t shown = 10;
  bool as_json = false;
  CLI::App app{description, "muster-data"};
  CLI::App* convert =
      app.add_subcommand("convert", "write the records of a source into muster's own format, or as Parquet");
  CLI::App* inspect = app.add_subcommand("inspect",
                                         "describe a source, with its first samples as a program receives them; text "
                                         "is read, and its bad records counted");
  CLI::App* verify = app.add_subcommand("verify", "read every record of a source");
  CLI::App* stats = app.add_subcommand(
      "stats",
      "count, mean, deviation and range of a source's columns, and how often each label is there; a folder of "
      "records keeps them in its manifest");
  CLI::App* reshard = app.add_subcommand("reshard", "write records into files of another size or number");
  CLI::App* parameters = app.add_subcommand("export", "write the parameters in a checkpoint as a safetensors file");
  CLI::App* shard = app.add_subcommand(
      "shard", "cut the records of a source into shards, each in files of its own, which may be on different ranks");

  command_line() {
    app.require_subcommand(1);
    app.set_version_flag("--version", "muster " + muster::library_version(), "of muster");
    app.footer(sources_help());
    parameters->add_option("CHECKPOINT", source, "a folder of checkpoints (the newest is taken), or its file .state")
        ->required();
    parameters->add_option("OUT", copy.to, "the safetensors file")->required();
    for (CLI::App* command : {convert, inspect, verify, stats, reshard, shard}) {
      command->add_flag("--json", as_json, "print one JSON object");
      muster::add_number(*command, "--threads", copy.threads, {0, 4096}, "threads to read with; 0: all there are");
    }
    for (CLI::App* command : {inspect, verify, stats}) command->add_option("SOURCE", source, "the source")->required();
    muster::add_number(*verify, "--show", shown, any_number, "number of bad records to list");
    for (CLI::App* command : {convert, reshard, shard}) {
      command->add_option("SOURCE", copy.from, "the source")->required();
      muster::add_number(*command, "--file-bytes", copy.file_bytes, {1, most_file_bytes, true},
                         "bytes of records after which a new file begins")
          ->default_str("256MiB");
      muster::add_number(*command, "--alignment", copy.layout.alignment, {0, 4096},
                         "alignment of records in a file, a power of two; 0: 64 or 8");
      muster::add_number(*command, "--block-bytes", copy.layout.block_bytes, {0, most_block_bytes, true},
                         "size of blocks to compress with Zstandard; 0: no compression, records are read in place");
      muster::add_number(*command, "--level", copy.layout.level, {1, 19}, "level of Zstandard, from fast to small");
      command->add_option("--bad", policy, "bad records: fail, skip or quarantine")
          ->capture_default_str()
          ->check(CLI::IsMember({"fail", "skip", "quarantine"}));
      muster::add_number(*command, "--bad-limit", copy.bad.limit, any_number,
                         "number of bad records that may be skipped")
          ->default_str("no limit");
      command->add_option("--quarantine", copy.bad.file,
                          "the file that bad records are listed in, a JSON object a line");
    }
    for (CLI::App* command : {convert, reshard}) {
      command->add_option("OUT", copy.to, "a folder, or a name that ends with .muster or .parquet for one file")
          ->required();
      muster::add_number(*command, "--files", copy.files, {0, 1'000'000},
                         "number of files with about the same number of records; 0: by --file-bytes");
    }
    shard->add_option("--out", copy.to, "the folder")->required();
    muster::add_number(*shard, "--shards", copy.shards, {0, 10'000}, "number of shards; 0: the number of weights");
    shard
        ->add_option("--by", copy.by,
                     "range, weights:2,1,1 (neighbours, in proportion) or hash:KEY (a label, a field, or record)")
        ->default_str("range");
    for (CLI::App* command : {convert, shard}) {
      command
          ->add_option("--classes", copy.classes,
                       "names of the classes, from label 0 on; the classes of a source with names are numbered anew")
          ->type_name("NAME,NAME,...")
          ->delimiter(',');
    }
    for (CLI::App* command : {convert, shard})
      command->add_flag("--append", copy.append, "add to the existing records in the folder");
  }

  void finish() {
    using muster::bad_record_policy;
    copy.bad.policy = policy == "skip"         ? bad_record_policy::skip
                      : policy == "quarantine" ? bad_record_policy::quarantine
                                               : bad_record_policy::fail;
    if ((policy == "quarantine") == copy.bad.file.empty()) {
      throw muster::configuration_error(
          "--quarantine FILE and --bad quarantine require each other; give both or neither");
    }
  }
};

int run(command_line& chosen) {
  if (*chosen.convert || *chosen.reshard || *chosen.shard) {
    chosen.finish();
    if (*chosen.shard && chosen.copy.by.empty()) chosen.copy.by = "range";
    if (*chosen.reshard && !as_specification(chosen.copy.from).starts_with("records:")) {
      throw muster::configuration_error("reshard reads muster's own records ('" + chosen.copy.from +
                                        "' is another kind); use convert");
    }
    show(copy_records(chosen.copy), chosen.as_json);
    return 0;
  }
  if (*chosen.parameters) {
    muster::export_parameters(chosen.source, chosen.copy.to);
    return 0;
  }
  const std::string specification = as_specification(chosen.source);
  if (*chosen.inspect) {
    const auto report = describe_source(specification, chosen.copy.threads);
    show(report, chosen.as_json);
    return report.value("bad", 0) == 0 || report["bad"] != report["records"] ? 0 : bad_data;
  }
  if (*chosen.stats) {
    show(describe_statistics(specification, chosen.copy.threads), chosen.as_json);
    return 0;
  }
  const auto report = verify_source(specification, chosen.shown, chosen.copy.threads);
  show(report, chosen.as_json);
  return report["bad"] == 0 ? 0 : bad_data;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("muster-data", [&] {
    command_line chosen;
    return is_answered(chosen.app, argc, argv) ? 0 : run(chosen);
  });
}
