#include "tools/eval/tasks/prompt_format.h"

#include <fstream>
#include <memory>

#include "engine/tokenizer/tokenizer_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/byte_tokenizer.h"
#include "tests/testing/fake_chat_template.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;

TaskSample Sample() {
  TaskSample sample;
  sample.task = "test";
  sample.context = "Far away lives Zhoradel. It rains. ";
  sample.question = "Who lives far away?";
  sample.answer_prefix = " It is";
  sample.forced_answer = " Zhoradel";
  sample.evidence = {{15, 23}};
  return sample;
}

std::unique_ptr<Tokenizer> SmallBpe() {
  auto hf = ReadHfTokenizer(TOKENBUTLER_TEST_DATA "/tokenizers/json-qwen2.json", "");
  if (!hf.ok()) throw std::runtime_error(std::string(hf.status().message()));
  return *Tokenizer::Create(std::move(hf->spec));
}

std::string Text(const Tokenizer& tokenizer, absl::Span<const int32_t> ids) {
  return tokenizer.Decode(ids, /*skip_special_tokens=*/false);
}

TEST(PromptFormatTest, PartsTogetherAreTheWholeTextsTokens) {
  const std::unique_ptr<Tokenizer> tokenizer = SmallBpe();
  const PromptFormat format(*tokenizer, nullptr, ChatUse::kAsBenchmark);
  const auto prompt = format.Format(Sample());
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  std::vector<int32_t> all = prompt->context;
  all.insert(all.end(), prompt->question.begin(), prompt->question.end());
  EXPECT_EQ(all, tokenizer->Encode(Sample().prompt(), {}));
  EXPECT_EQ(Text(*tokenizer, all), Sample().prompt());
  EXPECT_EQ(*format.CountTokens(Sample()), prompt->num_tokens());
  // A space at the end of the context may belong to the question's first token.
  const std::string context = Text(*tokenizer, prompt->context);
  EXPECT_THAT(context, ::testing::AnyOf("Far away lives Zhoradel. It rains.",
                                        "Far away lives Zhoradel. It rains. "));
  EXPECT_EQ(Text(*tokenizer, prompt->forced_answer), " Zhoradel");
  ASSERT_EQ(prompt->evidence.size(), 1);
  const auto [begin, end] = prompt->evidence[0];
  // With the space before it or without, as the tokenizer cuts.
  EXPECT_THAT(Text(*tokenizer, absl::MakeConstSpan(prompt->context).subspan(begin, end - begin)),
              ::testing::AnyOf(" Zhoradel", "Zhoradel"));
}

TEST(PromptFormatTest, AChatTemplateStandsAroundContextAndQuestion) {
  const ByteTokenizer tokenizer;
  const FakeChatTemplate chat;
  const PromptFormat format(tokenizer, &chat, ChatUse::kAlways);
  const auto prompt = format.Format(Sample());
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(Text(tokenizer, prompt->context), "user: Far away lives Zhoradel. It rains. ");
  EXPECT_EQ(Text(tokenizer, prompt->question), "Who lives far away?\nassistant:  It is");
  EXPECT_THAT(prompt->evidence, ElementsAre(std::pair(21, 29)));
}

TEST(PromptFormatTest, TheBenchmarksChoiceIsTheSamples) {
  const ByteTokenizer tokenizer;
  const FakeChatTemplate chat;
  TaskSample sample = Sample();
  const int plain = *PromptFormat(tokenizer, nullptr, ChatUse::kNever).CountTokens(sample);
  const PromptFormat format(tokenizer, &chat, ChatUse::kAsBenchmark);
  EXPECT_EQ(*format.CountTokens(sample), plain);
  sample.has_chat_form = true;
  EXPECT_GT(*format.CountTokens(sample), plain);
  EXPECT_EQ(*PromptFormat(tokenizer, &chat, ChatUse::kNever).CountTokens(sample), plain);
  // A base model gets plain text.
  EXPECT_EQ(*PromptFormat(tokenizer, nullptr, ChatUse::kAsBenchmark).CountTokens(sample), plain);
  EXPECT_EQ(PromptFormat(tokenizer, nullptr, ChatUse::kAlways).CountTokens(sample).status().code(),
            absl::StatusCode::kInvalidArgument);
}

class TrimmingTemplate : public ChatTemplate {
 public:
  absl::StatusOr<RenderedPrompt> Render(const ChatInput& input) const override {
    const std::string& content = *input.messages[0].content;
    const size_t begin = content.find_first_not_of(" \n");
    const std::string kept = content.substr(begin, content.find_last_not_of(" \n") + 1 - begin);
    return RenderedPrompt{.text = "[" + kept + "]", .content_spans = {{1, 1 + kept.size()}}};
  }
};

class ShoutingTemplate : public ChatTemplate {
 public:
  absl::StatusOr<RenderedPrompt> Render(const ChatInput&) const override {
    return RenderedPrompt{.text = "FAR AWAY", .content_spans = {}};
  }
};

TEST(PromptFormatTest, TemplatesMayTrimAMessageButNotChangeIt) {
  const ByteTokenizer tokenizer;
  const TrimmingTemplate trimming;
  TaskSample sample = Sample();
  sample.question += "\n";
  const auto prompt = PromptFormat(tokenizer, &trimming, ChatUse::kAlways).Format(sample);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(Text(tokenizer, prompt->context), "[Far away lives Zhoradel. It rains. ");
  EXPECT_EQ(Text(tokenizer, prompt->question), "Who lives far away?] It is");

  const ShoutingTemplate shouting;
  EXPECT_EQ(PromptFormat(tokenizer, &shouting, ChatUse::kAlways).Format(sample).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(PromptFormatTest, ThereMustBeContextAndQuestion) {
  const ByteTokenizer tokenizer;
  const PromptFormat format(tokenizer, nullptr, ChatUse::kNever);
  TaskSample sample = Sample();
  sample.question = sample.answer_prefix = "";
  EXPECT_EQ(format.Format(sample).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tokenbutler
