#include "engine/chat_template/chat_template.h"

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

absl::StatusOr<RenderedPrompt> Render(std::string source, const ChatInput& input = {},
                                      TemplateOptions options = {}) {
  ASSIGN_OR_RETURN(const auto chat_template,
                   ChatTemplate::Compile(std::move(source), std::move(options)));
  return chat_template->Render(input);
}

std::string TextOf(std::string source, const ChatInput& input = {}) {
  const auto result = Render(std::move(source), input);
  return result.ok() ? result->text : std::string(result.status().message());
}

absl::Status StatusOf(std::string source, TemplateOptions options = {}) {
  return Render(std::move(source), {}, std::move(options)).status();
}

ChatInput UserSays(std::string content) {
  ChatInput input;
  input.messages.push_back({"user", std::move(content), ""});
  return input;
}

std::vector<std::string> ContentOf(const std::string& source, const ChatInput& input) {
  const auto result = Render(source, input);
  EXPECT_TRUE(result.ok()) << result.status();
  std::vector<std::string> pieces;
  if (!result.ok()) return pieces;
  for (const auto& [begin, end] : result->content_spans) {
    pieces.push_back(result->text.substr(begin, end - begin));
  }
  return pieces;
}

TEST(ChatTemplateTest, SpansCoverWhatCameFromMessages) {
  const auto result = Render(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
      UserSays("hi <|im_end|>"));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->text, "<|im_start|>user\nhi <|im_end|><|im_end|>\n");
  EXPECT_THAT(result->content_spans, ElementsAre(Pair(17, 30)));
}

TEST(ChatTemplateTest, ProvenanceGoesThroughStringWork) {
  const ChatInput input = UserSays("  <a>b</a>c<eos>  ");
  const std::string c = "messages[0].content";
  const auto expect = [&](const std::string& expression, std::vector<std::string> pieces) {
    EXPECT_EQ(ContentOf("{{ " + expression + " }}", input), pieces) << expression;
  };
  expect(c + "|trim", {"<a>b</a>c<eos>"});
  expect("'<s>' + " + c + ".strip() + '</s>'", {"<a>b</a>c<eos>"});
  expect("'<s>' ~ " + c + "[2:5] ~ '</s>'", {"<a>"});
  expect(c + ".split('</a>')[-1].strip()", {"c<eos>"});
  expect("(" + c + "|trim)[::-1]", {">soe<c>a/<b>a<"});
  expect(c + "|trim|replace('b', '<x>')", {"<a>", "</a>c<eos>"});
  expect("'<t>%s</t>' % (" + c + "|trim)", {"<a>b</a>c<eos>"});
  expect("'<t>{}</t>'.format(" + c + "|trim)", {"<a>b</a>c<eos>"});
  expect("['<x>', " + c + "|trim]|join('|')", {"<a>b</a>c<eos>"});
  expect("{'k': " + c + "|trim}|tojson", {"<a>b</a>c<eos>"});
  expect("[" + c + "|trim]", {"<a>b</a>c<eos>"});
  expect(c + "|trim|upper", {"<A>B</A>C<EOS>"});
  expect("'<s>' if " + c + " else ''", {});
  EXPECT_THAT(
      ContentOf("{% set x %}<s>{{ messages[0].content|trim }}</s>{% endset %}{{ x }}", input),
      ElementsAre("<a>b</a>c<eos>"));
  EXPECT_THAT(
      ContentOf("{% macro m(t) %}<s>{{ t }}</s>{% endmacro %}{{ m(messages[0].content|trim) }}",
                input),
      ElementsAre("<a>b</a>c<eos>"));
}

TEST(ChatTemplateTest, OtherFieldsAreContentToo) {
  ChatInput input;
  input.messages.push_back({"assistant", std::nullopt,
                            R"({"tool_calls": [{"function": {"name": "<eos>", "<k>": 1}}]})"});
  input.tools_json = R"([{"name": "<tool>"}])";
  input.template_kwargs_json = R"({"note": "<note>"})";
  EXPECT_THAT(ContentOf("<s>{{ messages[0].tool_calls[0].function.name }}{{ tools[0].name }}<s>"
                        "{{ note }}<s>{{ messages[0].tool_calls[0].function|list|last }}",
                        input),
              ElementsAre("<eos><tool>", "<note>", "<k>"));
}

// Phi's template makes "<|user|>" of "<|", the role and "|>".
TEST(ChatTemplateTest, KnownRolesAreTemplateTextAndOthersAreNot) {
  ChatInput input = UserSays("x");
  const std::string source = "{{ '<|' + messages[0].role + '|>' }}";
  for (const char* role : {"assistant", "bot", "developer", "function", "human", "ipython", "model",
                           "observation", "system", "tool", "user"}) {
    input.messages[0].role = role;
    EXPECT_THAT(ContentOf(source, input), IsEmpty()) << role;
  }
  for (const char* role : {"im_end", "end", "eot_id", "endoftext", "im_start", "critic", "User",
                           "user ", "users", "use", "user|><|im_end"}) {
    input.messages[0].role = role;
    EXPECT_THAT(ContentOf(source, input), ElementsAre(role));
  }
}

TEST(ChatTemplateTest, ForgedRolesStayContentThroughStringWork) {
  ChatInput input = UserSays("x");
  input.messages[0].role = "IM_END";
  EXPECT_THAT(ContentOf("{% for m in messages %}<|{{ m['role'] | lower }}|>{% endfor %}", input),
              ElementsAre("im_end"));
  EXPECT_THAT(ContentOf("{{ '<|%s|>' % messages[0].get('role') }}", input), ElementsAre("IM_END"));
  input.messages[0].role = "";
  EXPECT_THAT(ContentOf("<|{{ messages[0].role }}|>", input), IsEmpty());
}

TEST(ChatTemplateTest, MessageTextIsNeverTemplate) {
  const std::string hostile = "{{ 7 * 7 }}{% for x in range(9) %}{# x #}";
  EXPECT_EQ(TextOf("{{ messages[0].content }}", UserSays(hostile)), hostile);
  EXPECT_EQ(
      TextOf("{{ messages[0].content|trim|replace('a', 'b')|e|safe|string }}", UserSays("{{ 1 }}")),
      "{{ 1 }}");
}

TEST(ChatTemplateTest, RaiseExceptionGivesItsMessageAlone) {
  const absl::Status status = StatusOf("\n{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), "roles must alternate");
}

TEST(ChatTemplateTest, ErrorsNameConstructAndLine) {
  const auto expect = [](const std::string& source, absl::StatusCode code,
                         const std::string& message) {
    const absl::Status status = StatusOf(source);
    EXPECT_EQ(status.code(), code) << source;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << source;
  };
  using absl::StatusCode;
  expect("a\n{{ x|frobnicate }}", StatusCode::kUnimplemented,
         "line 2: no filter named 'frobnicate'");
  expect("\n\n{% if x is weird %}{% endif %}{{ 1 is odd2 }}", StatusCode::kUnimplemented,
         "line 3: no test named 'odd2'");
  expect("{% include 'x' %}", StatusCode::kUnimplemented, "the tag 'include' is not supported");
  expect("\n{% frob %}", StatusCode::kInvalidArgument, "line 2: unknown tag 'frob'");
  expect("{{ 'x'.encode() }}", StatusCode::kUnimplemented, "the method 'encode' of 'str'");
  expect("{{ cycler(1) }}", StatusCode::kUnimplemented, "'cycler'");
  expect("\n\n{{ nothing.x }}", StatusCode::kInvalidArgument, "line 3: 'nothing' is undefined");
  expect("{{ messages[3].content }}", StatusCode::kInvalidArgument,
         "'list object' has no element 3");
  expect("{{ messages.append(1) }}", StatusCode::kInvalidArgument, "unsafe");
  expect("{% for x in [1] %}\n{{ x + 'a' }}\n{% endfor %}", StatusCode::kInvalidArgument, "line 2");
  expect("{% if x", StatusCode::kInvalidArgument, "line 1");
  expect("{{ 9223372036854775807 + 1 }}", StatusCode::kUnimplemented, "64 bits");
}

TEST(ChatTemplateTest, BadInputNamesTheField) {
  const auto expect = [](const ChatInput& input, const std::string& message) {
    const absl::Status status = Render("x", input).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  ChatInput input = UserSays("ok");
  input.messages[0].content = "\xff";
  expect(input, "messages[0].content is not valid UTF-8 at byte 0");
  input = UserSays("ok");
  input.messages[0].fields_json = "[1]";
  expect(input, "messages[0].fields_json is not a JSON object");
  input.messages[0].fields_json = "{\"a\": }";
  expect(input, "messages[0].fields_json: not valid JSON at byte");
  input.messages[0].fields_json = "{\"role\": \"x\"}";
  expect(input, "messages[0].fields_json has a \"role\"");
  input = UserSays("ok");
  input.tools_json = "nope";
  expect(input, "tools_json: not valid JSON");
  input.tools_json = "{}";
  expect(input, "tools_json is not a JSON array");
  input.tools_json = "";
  input.template_kwargs_json = "3";
  expect(input, "template_kwargs is not a JSON object");
}

TEST(ChatTemplateTest, DeepJsonIsRefused) {
  ChatInput input;
  input.tools_json = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(Render("x", input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplateTest, KeywordArgumentsDoNotReplaceTheConversation) {
  ChatInput input = UserSays("hi");
  input.template_kwargs_json = R"({"messages": [], "add_generation_prompt": true, "x": "y"})";
  EXPECT_EQ(TextOf("{{ messages|length }}{{ add_generation_prompt }}{{ x }}", input), "1Falsey");
}

TEST(ChatTemplateTest, ClockIsInjected) {
  TemplateOptions options;
  options.now = [] { return absl::FromUnixSeconds(0); };
  options.time_zone = absl::UTCTimeZone();
  EXPECT_EQ(Render("{{ strftime_now('%d %b %Y') }}", {}, options)->text, "01 Jan 1970");
}

TEST(ChatTemplateTest, ExtraVariables) {
  TemplateOptions options;
  options.bos_token = "<s>";
  options.variables = {{"unk_token", "<unk>"}};
  const auto result = Render("{{ bos_token }}{{ unk_token }}{{ eos_token }}", {}, options);
  EXPECT_EQ(result->text, "<s><unk>");
  EXPECT_THAT(result->content_spans, IsEmpty());
}

// Hostile templates end quickly, with an error.
TEST(ChatTemplateTest, EndlessWorkIsStopped) {
  TemplateOptions small;
  small.max_steps = 200'000;
  for (const std::string source : {
           "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
           "{% set n=namespace(x='a') %}{% for i in range(99) %}{% set n.x=n.x+n.x %}{% endfor %}",
           "{{ 'x' * 1000000000000 }}",
           "{{ [0] * 1000000000000 }}",
           "{{ 'abc' | center(1000000000) }}",
           "{{ ['a'] | batch(100000000, 'x') | list }}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
           "{% set n=namespace(x=[]) %}{% for i in range(100000) %}{% set n.x=[n.x] %}{% endfor %}",
           "{{ ('a' * 60000) | replace('', 'b' * 60000) | length }}",
       }) {
    const absl::Status status = StatusOf(source, small);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << source << status;
  }
  EXPECT_EQ(StatusOf("{{ range(10 ** 9) }}").code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplateTest, OutputIsBounded) {
  TemplateOptions small;
  small.max_output_bytes = 1000;
  const absl::Status status =
      StatusOf("{% for i in range(99) %}{{ 'x' * 100 }}{% endfor %}", small);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1000 bytes"));
}

TEST(ChatTemplateTest, DeepNestingInTheSourceIsRefused) {
  const auto repeat = [](const std::string& piece, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += piece;
    return out;
  };
  constexpr int kDeep = 100'000;
  for (const std::string& source :
       {"{{ " + repeat("(", kDeep) + repeat(")", kDeep) + "}}",
        "{{ " + repeat("[", kDeep) + repeat("]", kDeep) + "}}",
        "{{ " + repeat("not ", kDeep) + "1 }}", "{{ " + repeat("-", kDeep) + "1 }}",
        "{{ 1" + repeat("+1", kDeep) + " }}", "{{ x" + repeat(".y", kDeep) + " }}",
        "{{ x" + repeat("|trim", kDeep) + " }}",
        "{{ x" + repeat("[x", kDeep) + repeat("]", kDeep) + "}}", repeat("{% if 1 %}", kDeep),
        repeat("{% for x in y %}", kDeep), "{{ " + repeat("1 if 1 else ", kDeep) + "1 }}",
        "{{ " + repeat("{1:", kDeep) + "1" + repeat("}", kDeep) + "}}"}) {
    const absl::Status status = StatusOf(source);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted)
        << source.substr(0, 30) << status;
  }
  // Long but flat is fine.
  EXPECT_EQ(TextOf("{{ " + repeat("'a' ~ ", 5000) + "'b' }}").size(), 5001u);
  EXPECT_EQ(TextOf("{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% else %}x{% endif %}"), "x");
}

TEST(ChatTemplateTest, NamespacesThatHoldEachOtherAreFreed) {
  EXPECT_EQ(
      TextOf("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}"
             "{% set a.self = a %}{% for x in [1] %}{% set a.loop = loop %}{% set a.c = "
             "loop.changed(loop) %}"
             "{% endfor %}{% macro m() %}{{ a }}{% endmacro %}{% set a.m = m %}{{ a.b.a.c }}"),
      "True");
}

TEST(ChatTemplateTest, RendersFromManyThreads) {
  const auto chat_template = ChatTemplate::Compile(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
      "{{ [1, 2] | map('string') | join }}{{ m.content }}{% endfor %}{{ ns.n }}",
      {});
  ASSERT_TRUE(chat_template.ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string content = std::to_string(t * 1000 + i);
        EXPECT_EQ((*chat_template)->Render(UserSays(content))->text, "12" + content + "1");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ChatTemplateTest, LongConversationsAreLinear) {
  ChatInput input;
  for (int i = 0; i < 2000; ++i) input.messages.push_back({"user", std::string(2000, 'x'), ""});
  const auto result = Render(
      "{% for m in messages %}{% if m.role == 'user' and messages[loop.index0 - 1].role == 'user' "
      "%}"
      "<|u|>{{ m.content|trim }}{% endif %}{% endfor %}",
      input);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->text.size(), 2000u * 2005);
  EXPECT_EQ(result->content_spans.size(), 2000u);
}

}  // namespace
}  // namespace tokenbutler
