#include <muster/serve/repository.hpp>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "data/files.hpp"
#include "heard_log.hpp"
#include "models.hpp"

using namespace served;
namespace fs = std::filesystem;

namespace {

/// A folder of models. A version is a folder with a file that has the factor.
struct models_folder {
  temporary_folder folder;

  /// Makes a version under a temporary name, then renames it.
  void add(const std::string& model, int version, const std::string& text) const {
    const fs::path temporary = folder / (model + "/" + std::to_string(version) + ".new");
    fs::create_directories(temporary);
    std::ofstream(temporary / "factor") << text;
    fs::rename(temporary, folder / (model + "/" + std::to_string(version)));
  }
  void remove(const std::string& model, int version) const {
    fs::remove_all(folder / (model + "/" + std::to_string(version)));
  }
  [[nodiscard]] std::string path() const { return folder / ""; }
};

serve::any_predictor load(const std::string& folder) {
  std::ifstream file(folder + "/factor");
  float factor = 0;
  if (!(file >> factor)) throw muster::data_error({folder + "/factor"}, "is no number");
  return sums{.factor = factor};
}

constexpr muster::seconds never{1e6};

std::uint64_t version_of(const serve::repository& models, const std::string& name) {
  const auto found = models.find(name);
  return found ? found->version : 0;
}

/// Returns the served version's prediction for a row of ones, or -2 if the queue is full.
float predict(serve::served_model& model) {
  const std::vector<float> ones(4, 1);
  const std::vector<std::span<const std::byte>> rows = {bytes_of(ones)};
  std::promise<float> answer;
  const bool accepted =
      model.requests.submit({rows, muster::clock::time_point::max(), [&](serve::prediction&& reply) {
                               answer.set_value(reply.values.empty() ? -1 : floats_of(reply.values)[0]);
                             }});
  return accepted ? answer.get_future().get() : -2;
}

}  // namespace

TEST_CASE("the highest version that loads is served, others are left aside and reported once") {
  const test::heard_log log;
  const models_folder files;
  files.add("a", 1, "1");
  files.add("a", 9, "9");
  files.add("a", 10, "no number");
  files.add("b", 3, "3");
  files.add("broken", 1, "no number");
  files.add("not a name", 1, "1");
  fs::create_directories(files.folder / "a/11.new");
  fs::create_directories(files.folder / "a/012");
  serve::repository models(files.path(), load, {}, never);
  models.scan();
  CHECK(models.is_ready());
  CHECK(version_of(models, "a") == 9);
  CHECK(version_of(models, "b") == 3);
  CHECK(models.all().size() == 2);
  CHECK(models.find("broken") == nullptr);
  CHECK(models.failed_loads() == 2);
  models.scan();
  CHECK(models.failed_loads() == 2);
  CHECK(log.text().find("a/10 is not served") != std::string::npos);
  CHECK(log.text().find("a/10 is not served") == log.text().rfind("a/10 is not served"));
  CHECK(predict(*models.find("a")) == 36);
  SECTION("a damaged version that is put there anew is tried again") {
    files.remove("a", 10);
    files.add("a", 10, "10");
    models.scan();
    CHECK(version_of(models, "a") == 10);
  }
  SECTION("a version that is removed is not served any more") {
    files.remove("a", 9);
    models.scan();
    CHECK(version_of(models, "a") == 1);
    files.remove("a", 1);
    models.scan();
    CHECK(models.find("a") == nullptr);
    CHECK(models.is_ready());
    fs::remove_all(files.folder / "b");
    models.scan();
    CHECK_FALSE(models.is_ready());
  }
  SECTION("a folder of the same number that is another one is served") {
    const auto old = models.find("b");
    files.remove("b", 3);
    files.add("b", 3, "4");
    models.scan();
    CHECK(predict(*models.find("b")) == 16);
    CHECK(predict(*old) == 12);  // a version accepts requests as long as a caller holds it
  }
}

TEST_CASE("files of the served version that are written over change it when they are whole, and not before") {
  const test::heard_log heard;
  const models_folder files;
  files.add("a", 1, "1");
  files.add("a", 2, "2");
  serve::repository models(files.path(), load, {}, never);
  models.scan();
  REQUIRE(predict(*models.find("a")) == 8);
  const auto inode_of = [&] {
    struct stat found {};
    REQUIRE(::stat((files.folder / "a/2").c_str(), &found) == 0);
    return found.st_ino;
  };
  const auto inode = inode_of();
  const auto write_over = [&](const std::string& text) { std::ofstream(files.folder / "a/2/factor") << text; };
  write_over("");  // as after cp has truncated the file
  models.scan();
  CHECK(predict(*models.find("a")) == 8);
  CHECK(models.failed_loads() == 0);  // the file may be incomplete
  models.scan();
  models.scan();
  CHECK(models.failed_loads() == 1);
  CHECK(heard.text().find("a/2 is not served with its current files") != std::string::npos);
  REQUIRE(models.find("a"));
  CHECK(version_of(models, "a") == 2);  // neither the previous version nor none
  CHECK(predict(*models.find("a")) == 8);
  write_over("3");
  models.scan();
  CHECK(predict(*models.find("a")) == 8);
  models.scan();
  CHECK(predict(*models.find("a")) == 12);
  CHECK(inode_of() == inode);
  CHECK(models.failed_loads() == 1);
}

TEST_CASE("a damaged version whose file is written over is tried again") {
  const models_folder files;
  files.add("a", 1, "no number");
  muster::set_log_level(muster::log_level::off, false);
  serve::repository models(files.path(), load, {}, never);
  models.scan();
  muster::set_log_level(muster::log_level::warning, false);
  CHECK(models.find("a") == nullptr);
  std::ofstream(files.folder / "a/1/factor") << "5";
  models.scan();
  REQUIRE(models.find("a"));
  CHECK(predict(*models.find("a")) == 20);
}

TEST_CASE("a version of several files that change while they are read is served of one kind of them") {
  const models_folder files;
  files.add("a", 1, "1");
  const auto add_second = [&](const std::string& text) { std::ofstream(files.folder / "a/1/second") << text; };
  add_second("1");
  bool changes = true;
  const auto load_both = [&](const std::string& folder) -> serve::any_predictor {
    float first = 0, second = 0;
    std::ifstream(folder + "/factor") >> first;
    if (changes) {
      std::ofstream(folder + "/factor") << "2";
      add_second("2");
    }
    std::ifstream(folder + "/second") >> second;
    return sums{.factor = first + 10 * second};
  };
  serve::repository models(files.path(), load_both, {}, never);
  models.scan();
  CHECK(models.find("a") == nullptr);  // a mix of 1 and 2
  changes = false;
  models.scan();
  REQUIRE(models.find("a"));
  CHECK(predict(*models.find("a")) == 88);
}

TEST_CASE("what is left out of a folder of models is said once") {
  const test::heard_log log;
  const models_folder files;
  files.add("a", 1, "1");
  for (const char* folder :
       {"padded/00000001", "named/v1", "a/18446744073709551616", "not a name/1", ".hidden/v1", "a/.v1", "a/2.new"})
    fs::create_directories(files.folder / folder);
  fs::create_directories(files.folder / "flat");
  for (const char* file : {"flat/model.muster", "a/2", "model.muster"}) std::ofstream(files.folder / file) << "1";
  fs::create_symlink("nowhere", files.folder / "a/3");
  serve::repository models(files.path(), load, {}, never);
  models.scan();
  models.scan();
  CHECK(models.all().size() == 1);
  const std::string text = log.text();
  for (const char* each : {"/padded/00000001", "/named/v1", "/a/18446744073709551616", "/not a name",
                           "/flat/model.muster", "/a/2", "/a/3", "/model.muster"}) {
    INFO(each);
    const std::string words = files.path() + each + " is left out (";
    CHECK(text.find(words) != std::string::npos);
    CHECK(text.find(words) == text.rfind(words));
  }
  for (const char* each : {"hidden", ".v1", "2.new"}) CHECK(text.find(each) == std::string::npos);
}

TEST_CASE("versions that appear under load are served without a failed request") {
  const models_folder files;
  files.add("a", 1, "1");
  serve::repository models(files.path(), load, {.queue = 100}, never);
  models.scan();
  std::atomic<bool> ends{false};
  std::atomic<int> failed{0}, requests{0};
  std::vector<std::thread> clients;
  for (int t = 0; t < 3; ++t) {
    clients.emplace_back([&] {
      std::uint64_t last = 0;
      while (!ends) {
        const auto model = models.find("a");
        if (!model || model->version < last || predict(*model) != 4 * static_cast<float>(model->version)) ++failed;
        if (model) last = model->version;
        ++requests;
      }
    });
  }
  for (int version = 2; version <= 30; ++version) {
    files.add("a", version, version % 5 == 0 ? "damaged" : std::to_string(version));
    models.scan();
    const int start_count = requests;
    while (requests < start_count + 20) std::this_thread::yield();
  }
  ends = true;
  for (auto& each : clients) each.join();
  CHECK(failed == 0);
  CHECK(version_of(models, "a") == 29);
  CHECK(models.failed_loads() == 6);
}

TEST_CASE("a version is warmed up at a lower priority than it serves at") {
  /// Appends the nice value of the calling thread to a list.
  struct watched : sums {
    std::vector<int>* values = nullptr;
    void predict(serve::prediction_batch& batch) const {
      values->push_back(::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())));
      sums::predict(batch);
    }
  };
  const models_folder files;
  files.add("a", 1, "1");
  std::vector<int> values;
  const auto load_watched = [&](const std::string& /*folder*/) {
    watched model;
    model.values = &values;
    return serve::any_predictor(std::move(model));
  };
  serve::repository models(files.path(), load_watched, {}, never);
  models.scan();
  CHECK(predict(*models.find("a")) == 4);
  REQUIRE(values.size() == 3);
  CHECK(values[0] > values[2]);
  CHECK(values[1] > values[2]);
  CHECK(values[2] == ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())));
}

TEST_CASE("a version whose warm-up fails is left aside") {
  struct failing : sums {
    void predict(serve::prediction_batch& batch) const {
      if (factor == 2) throw std::runtime_error("it has a damaged layer");
      sums::predict(batch);
    }
  };
  const models_folder files;
  files.add("a", 1, "1");
  files.add("a", 2, "2");
  const auto load_failing = [](const std::string& folder) {
    failing model;
    model.factor = folder.ends_with("2") ? 2 : 1;
    return serve::any_predictor(std::move(model));
  };
  const test::heard_log log;
  serve::repository models(files.path(), load_failing, {}, never);
  models.scan();
  CHECK(version_of(models, "a") == 1);
  CHECK(models.failed_loads() == 1);
}

TEST_CASE("a repository looks by itself") {
  const models_folder files;
  files.add("a", 1, "1");
  serve::repository models(files.path(), load, {}, muster::seconds(0.01));
  while (version_of(models, "a") != 1) std::this_thread::yield();
  files.add("a", 2, "2");
  while (version_of(models, "a") != 2) std::this_thread::yield();
  CHECK_THROWS_AS(serve::repository(files.folder / "none", load), muster::configuration_error);
}
