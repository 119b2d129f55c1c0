#include <muster/elastic/state.hpp>

#include <numeric>

#include <muster/core/error.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/sources/raw.hpp>

#include "catch.hpp"
#include "elastic/numbers.hpp"

namespace {

// An owner that keeps the changes of a step apart, as error feedback does.
struct apart {
  int value = 1;
  int next = 1;

  void describe(muster::state_parts& parts) {
    parts.add("apart", std::span(&value, 1), muster::state_kind::rank_local);
    parts.hook([this] { value = next; }, [this] { next = value; });
  }
};

// An owner whose state has no fixed size.
struct diary {
  std::string text;

  void describe(muster::state_parts& parts) {
    parts.add(
        "diary", muster::state_kind::replicated,
        [this] {
          const auto bytes = std::as_bytes(std::span(text));
          return std::vector<std::byte>(bytes.begin(), bytes.end());
        },
        [this](std::span<const std::byte> bytes) {
          text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        });
  }
};

struct weights {
  std::vector<float> values = std::vector<float>(8, 1.0f);

  void describe(muster::state_parts& parts) { parts.add("weights", std::span(values)); }
};

}  // namespace

TEST_CASE("a step commits or did not happen") {
  auto loader = numbers{100} | muster::shuffle(1) | muster::batch(30);
  std::vector<float> mean(5, 2.0f);
  apart feedback;
  weights model;
  muster::state state{model, muster::restored_values{"mean", std::span(mean)}, feedback, loader.cursor()};

  const auto step = [&] {
    state.begin_step();
    std::iota(mean.begin(), mean.end(), 10.0f);
    feedback.next = 7;
  };
  step();
  state.roll_back();
  CHECK(mean == std::vector<float>(5, 2.0f));
  CHECK(feedback.next == 1);
  CHECK(state.steps() == 0);
  CHECK(loader.cursor().position == 0);

  step();
  state.commit_step();
  CHECK(mean[4] == 14.0f);
  CHECK(feedback.value == 7);
  CHECK(state.steps() == 1);
  CHECK(loader.cursor().position == 30);
  state.roll_back();  // no step has begun
  CHECK(mean[4] == 14.0f);
  CHECK(state.progress().step == 1);
  CHECK(state.progress().epoch == 0.3);
}

TEST_CASE("a part that came with use is restored as the others are") {
  struct lazy {
    std::vector<double> values = {1.0, 2.0};
    bool used = false;
    void describe(muster::state_parts& parts) {
      if (used) parts.add("lazy", std::span(values));
    }
  } owner;
  weights model;
  muster::state state{model, owner};
  const auto step = [&](double value) {
    state.begin_step();
    owner.used = true;
    owner.values[1] = value;
    model.values[3] = static_cast<float>(value);
  };
  step(3);
  state.commit_step();
  step(4);
  state.roll_back();
  CHECK(owner.values[1] == 3);
  CHECK(model.values[3] == 3);
}

TEST_CASE("a part without a place of its own is restored on failure where that is asked for") {
  diary words{"so far"};
  struct restored {
    diary* target;
    void describe(muster::state_parts& parts) {
      parts.add(
          "restored diary", muster::state_kind::replicated, [this] { return saved(); },
          [this](std::span<const std::byte> bytes) {
            target->text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          },
          muster::rollback_policy::restore_on_failure);
    }
    [[nodiscard]] std::vector<std::byte> saved() const {
      const auto bytes = std::as_bytes(std::span(target->text));
      return {bytes.begin(), bytes.end()};
    }
  } owner{&words};
  muster::state state{owner};
  state.begin_step();
  words.text += ", and a step";
  state.roll_back();
  CHECK(words.text == "so far");
  state.begin_step();
  words.text += ", and a step";
  state.commit_step();
  CHECK(words.text == "so far, and a step");
}

TEST_CASE("a state has no digest within a step that may commit, and keeps its parts in an evaluation") {
  struct lazy {
    std::vector<double> values = {1.0, 2.0};
    bool used = false;
    void describe(muster::state_parts& parts) {
      if (used) parts.add("lazy", std::span(values));
    }
  } owner;
  weights model;
  muster::state state{owner, model};
  const auto before = state.digest();
  state.begin_step();
  owner.used = true;
  model.values[0] = 9;
  CHECK_THROWS_WITH(state.digest(), contains("within a step"));
  CHECK_THROWS_AS(state.parts(), muster::configuration_error);
  state.roll_back();
  CHECK(model.values[0] == 1);
  owner.used = false;
  state.begin_step(false);
  owner.used = true;
  CHECK(state.digest() == before);
  model.values[0] = 9;
  state.finish_evaluation();
  CHECK(model.values[0] == 1);
}

TEST_CASE("the digest is of what is replicated and of the position") {
  auto loader = numbers{100} | muster::batch(30);
  apart feedback;
  weights model;
  diary words{"so far"};
  muster::state state{model, feedback, words, loader.cursor()};
  const auto before = state.digest();
  feedback.value = 3;
  CHECK(state.digest() == before);
  model.values[7] = 5.0f;
  CHECK(state.digest() != before);
  model.values[7] = 1.0f;
  CHECK(state.digest() == before);
  words.text += ".";
  CHECK(state.digest() != before);
  words.text = "so far";
  loader.commit();
  CHECK(state.digest() != before);
}

TEST_CASE("a state goes where another was") {
  auto source = numbers{100} | muster::shuffle(3) | muster::batch(30);
  auto destination = numbers{100} | muster::shuffle(3) | muster::batch(30);
  weights model;
  muster::state ahead{model, source.cursor()};
  muster::state behind{model, destination.cursor()};
  for (int k = 0; k < 3; ++k) {
    ahead.begin_step();
    ahead.commit_step();
  }
  CHECK(ahead.position().is_beyond(behind.position()));
  CHECK_FALSE(behind.position().is_beyond(ahead.position()));
  behind.move_to(ahead.position());
  CHECK(destination.cursor() == source.cursor());
  CHECK(behind.position() == ahead.position());
  CHECK_FALSE(behind.position().is_beyond(ahead.position()));

  auto other = numbers{99} | muster::shuffle(3) | muster::batch(30);
  muster::state foreign{model, other.cursor()};
  CHECK_THROWS_WITH(foreign.move_to(ahead.position()), contains("the number of samples is 100 there and 99 here"));
  CHECK(foreign.steps() == 0);
}

TEST_CASE("parts have names of their own, and come with use") {
  weights first, second;
  CHECK_THROWS_WITH((muster::state{first, second}), contains("two parts of the state are named 'weights'"));
  CHECK_THROWS_AS((muster::state{muster::restored_values{"", std::span(first.values)}}), muster::configuration_error);
  auto loader = numbers{100} | muster::batch(30);
  CHECK_THROWS_WITH((muster::state{loader.cursor(), loader.cursor()}), contains("two cursors"));

  muster::state state{first};
  CHECK(state.parts().size() == 1);
  CHECK_FALSE(state.has_data());
  CHECK(state.progress().epoch == 0.0);
}
