// A user-defined source, opened by name: records from a SQLite database, shuffled, cut into batches and prefetched.
//
//   $ 05_custom_dataset make points.db
//   points.db: 3000 rows
//   $ 05_custom_dataset train sqlite:points.db --ranks 2
//   epoch 1: loss ..., 3000 samples in ... s
//   epoch 2: loss ..., 3000 samples in ... s
//   y = 2.00 x - 1.00
#include <sqlite3.h>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include <muster/muster.hpp>

/// The rows of a table points(x, y) with rowids 1 to n: x is the record, y its label. Copies share the connection.
class sqlite_source {
 public:
  explicit sqlite_source(const std::string& path) : name_("sqlite:" + path) {
    sqlite3* opened = nullptr;  // FULLMUTEX: any thread may read
    const int status = sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READONLY | SQLITE_OPEN_FULLMUTEX, nullptr);
    base_.reset(opened, &sqlite3_close);
    if (status != SQLITE_OK) fail("cannot be opened");
    const auto all = prepare("SELECT count(*), total(x), total(y) FROM points");
    sqlite3_step(all.get());
    size_ = static_cast<std::uint64_t>(sqlite3_column_int64(all.get(), 0));
    const double sums[] = {sqlite3_column_double(all.get(), 1), sqlite3_column_double(all.get(), 2)};
    digest_ = muster::digest().add(size_).add(std::as_bytes(std::span(sums))).value();
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t digest() const { return digest_; }  // by it, a checkpoint of other data is rejected
  [[nodiscard]] const muster::record_schema& schema() const { return schema_; }
  void sizes(auto /*ids*/, std::span<std::uint64_t> out) const { std::ranges::fill(out, sizeof(float)); }
  void read(std::span<const muster::sample_id> ids, const muster::record_rows& rows,
            std::vector<muster::bad_record>* bad) const {
    const auto row = prepare("SELECT x, y FROM points WHERE rowid = ?");
    for (std::size_t k = 0; k < ids.size(); ++k) {
      sqlite3_reset(row.get());
      sqlite3_bind_int64(row.get(), 1, static_cast<sqlite3_int64>(ids[k] + 1));
      const bool found = sqlite3_step(row.get()) == SQLITE_ROW && sqlite3_column_type(row.get(), 0) != SQLITE_NULL;
      const auto x = static_cast<float>(sqlite3_column_double(row.get(), 0));  // 0 for NULL
      if (!rows.bytes.empty()) std::memcpy(rows.bytes.data() + k * sizeof x, &x, sizeof x);
      if (!rows.labels.empty()) rows.labels[k] = static_cast<float>(sqlite3_column_double(row.get(), 1));
      if (found) continue;
      const muster::data_location place{.file = name_, .line = ids[k] + 1};
      if (bad == nullptr) throw muster::data_error(place, "the row has no x");
      bad->push_back({ids[k], place, "the row has no x"});  // the loader's policy decides how to treat the record
    }
  }

 private:
  [[nodiscard]] std::unique_ptr<sqlite3_stmt, decltype(&sqlite3_finalize)> prepare(const char* text) const {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(base_.get(), text, -1, &statement, nullptr) != SQLITE_OK) fail(text);
    return {statement, &sqlite3_finalize};
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw muster::data_error({.file = name_}, problem + " (" + sqlite3_errmsg(base_.get()) + "); make it first");
  }

  std::string name_;
  std::shared_ptr<sqlite3> base_;
  std::uint64_t size_ = 0, digest_ = 0;
  muster::record_schema schema_{.fields = {{.name = "x", .type = muster::dtype::float32}}, .labels = {"y"}};
};

void make(const std::string& path) {
  sqlite3* opened = nullptr;
  const int status = sqlite3_open(path.c_str(), &opened);
  const std::unique_ptr<sqlite3, decltype(&sqlite3_close)> base(opened, &sqlite3_close);
  const char* const text =
      "CREATE TABLE points(x, y); WITH RECURSIVE n(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM n"
      " WHERE k < 2999) INSERT INTO points SELECT k / 1500.0 - 1, 2 * (k / 1500.0 - 1) - 1 FROM n";
  if (status != SQLITE_OK || sqlite3_exec(opened, text, nullptr, nullptr, nullptr) != SQLITE_OK)
    throw muster::configuration_error(path + " cannot be made (" + sqlite3_errmsg(opened) + "); name another file");
  std::printf("%s: 3000 rows\n", path.c_str());
}
void train(muster::context& context, muster::group& world, const std::string& source) {
  auto loader = muster::open_source(source) | muster::shuffle(1) | muster::batch(20) | muster::prefetch(4);
  muster::arena arena(context, {{"slope", {1}}, {"offset", {1}}});
  const std::span<float> slope = arena.parameter(0), offset = arena.parameter(1);
  muster::sgd optimizer(arena);
  muster::training training(context, arena, optimizer, loader);
  training.run({.epochs = 2}, [&](muster::training_step& step) {
    const auto batch = step.next(loader);
    double loss = 0;
    step.backward(batch, [&](const muster::minibatch& part, muster::backward_pass& pass) {
      pass.clear();
      for (std::size_t k = 0; k < part.samples.size(); ++k) {
        const float x = part.values<float>()[k], error = slope[0] * x + offset[0] - part.labels[k];
        pass.gradient(0)[0] += error * x;
        pass.gradient(1)[0] += error;
        loss += error * error / 2;
      }
    });
    step.update(optimizer, 0.3);
    step.report("loss", loss / static_cast<double>(batch.samples.size()), batch.samples.size());
  });
  if (world.rank() == 0) std::printf("y = %.2f x - %.2f\n", double{slope[0]}, double{-offset[0]});
}

muster::opened_source open(muster::spec_reader& from, const muster::read_options& /*options*/) {
  return sqlite_source(from.value("file"));
}

int main(int argc, char** argv) {
  muster::register_source({"sqlite", "FILE", "", "rows of a table points(x, y)"}, open);
  const auto body = [&](muster::context& context) {
    const std::string command = argc == 3 ? argv[1] : "";
    if (command == "make") return make(argv[2]);
    if (argc > 1 && argv[1][0] == '-') throw muster::unknown_argument(argv[1]);
    if (command != "train") throw muster::configuration_error("unknown command; use make FILE or train SOURCE");
    context.run([&](muster::group& world) { train(context, world, argv[2]); });
  };
  return muster::run_main(argc, argv, body, {.help = [] { return "05_custom_dataset make FILE | train SOURCE\n"; }});
}
