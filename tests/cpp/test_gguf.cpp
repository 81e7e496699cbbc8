// The GGUF reader on valid files and on each kind of wrong one.
#include <sys/stat.h>

#include <string>

#include "check.h"
#include "gguf_bytes.h"
#include "pykv/errors.h"
#include "pykv/gguf.h"

using gguf_bytes::TempFile;
using gguf_bytes::Writer;
using pykv::CorruptModel;
using pykv::Error;
using pykv::GgufFile;
using pykv::UnsupportedModel;

namespace {

constexpr std::uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9;

void open(const std::string& content) { GgufFile{TempFile(content).path()}; }
void open(const Writer& writer) { open(writer.bytes()); }

std::string message(const std::string& content) {
  try {
    open(content);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

Writer two_tensors(std::uint64_t second_offset) {
  Writer w(2, 0);
  w.tensor("a", 4, 2, 0, 0).tensor("b", 32, 1, 8, second_offset);
  w.pad_to(32).raw(std::string(32 + 34, '\1'));
  return w;
}

}  // namespace

TEST(reads_every_kind_of_value) {
  Writer w(0, 14);
  w.key("u8", 0).u8(200).key("i8", 1).u8(0xff).key("u16", 2).number(std::uint16_t{65535});
  w.key("i16", 3).number(std::int16_t{-2}).key("u32", kU32).u32(7).key("i32", kI32).number(-7);
  w.key("f32", kF32).number(0.5F).key("bool", kBool).u8(1).key("string", kString).text("h\xc3\xa9");
  w.key("u64", 10).u64(UINT64_MAX).key("i64", 11).number(std::int64_t{INT64_MIN}).key("f64", 12).number(0.25);
  w.key("strings", kArray).u32(kString).u64(3).text("a").text("").text("bc");
  w.key("floats", kArray).u32(kF32).u64(2).number(1.5F).number(-2.0F);
  const TempFile temp(w.bytes());
  const GgufFile file(temp.path());
  CHECK(file.version() == 3);
  CHECK(file.size() == w.bytes().size());
  CHECK(file.keys().size() == 14 && file.keys().front() == "u8");
  CHECK(file.unsigned_value("u8") == 200);
  CHECK(std::get<std::int64_t>(*file.scalar("i8")) == -1);
  CHECK(file.unsigned_value("u16") == 65535);
  CHECK(std::get<std::int64_t>(*file.scalar("i16")) == -2);
  CHECK(std::get<std::int64_t>(*file.scalar("i32")) == -7);
  CHECK(file.float_value("f32", 0) == 0.5);
  CHECK(std::get<bool>(*file.scalar("bool")));
  CHECK(file.string_value("string") == "h\xc3\xa9");
  CHECK(file.unsigned_value("u64") == UINT64_MAX);
  CHECK(std::get<std::int64_t>(*file.scalar("i64")) == INT64_MIN);
  CHECK(std::get<double>(*file.scalar("f64")) == 0.25);
  CHECK(file.string_array("strings") == (std::vector<std::string_view>{"a", "", "bc"}));
  CHECK(file.float_array("floats") == (std::vector<float>{1.5F, -2.0F}));
  CHECK(file.array_size("strings") == 3U);
  CHECK(!file.scalar("strings") && !file.scalar("nothing") && !file.array_size("u8"));
}

TEST(wrong_access_names_key_and_kind) {
  Writer w(0, 3);
  w.key("number", kI32).number(-7).key("text", kString).text("x");
  w.key("ids", kArray).u32(kI32).u64(1).number(3);
  const TempFile temp(w.bytes());
  const GgufFile file(temp.path());
  CHECK_THROWS(CorruptModel, file.unsigned_value("number"));
  CHECK_THROWS(CorruptModel, file.unsigned_value("text"));
  CHECK_THROWS(CorruptModel, file.unsigned_value("absent"));
  CHECK(file.unsigned_value("absent", 5) == 5);
  CHECK_THROWS(CorruptModel, file.unsigned_value("text", 5));
  CHECK_THROWS(CorruptModel, file.string_value("number"));
  CHECK_THROWS(CorruptModel, file.float_value("number", 1.0));
  CHECK_THROWS(CorruptModel, file.string_array("ids"));
  CHECK_THROWS(CorruptModel, file.float_array("ids"));
  CHECK_THROWS(CorruptModel, file.integer_array("text"));
  CHECK(file.integer_array("ids") == std::vector<std::int64_t>{3});
}

TEST(places_tensors) {
  const TempFile temp(two_tensors(32).bytes());
  const GgufFile file(temp.path());
  CHECK(file.tensors().size() == 2);
  const GgufFile::Tensor* b = file.find_tensor("b");
  CHECK(b != nullptr && b->type == pykv::DType::q8_0 && b->type_name == "Q8_0");
  CHECK(b->bytes.size() == 34 && b->bytes.data() == file.find_tensor("a")->bytes.data() + 32);
  CHECK(file.find_tensor("c") == nullptr);
  file.drop_pages();
  CHECK(b->bytes[33] == std::byte{1});
}

TEST(unknown_tensor_types_are_named_not_refused) {
  Writer w(2, 0);
  w.tensor("a", 256, 1, 23, 0).tensor("b", 32, 1, 77, 160).pad_to(32).raw(std::string(192, 0));
  const TempFile temp(w.bytes());
  const GgufFile file(temp.path());
  CHECK(file.tensors()[0].type_name == "IQ4_XS" && !file.tensors()[0].type &&
        file.tensors()[0].bytes.empty());
  CHECK(file.tensors()[1].type_name == "type 77" && !file.tensors()[1].type);
}

TEST(files_that_are_not_gguf) {
  CHECK_THROWS(CorruptModel, open(""));
  CHECK_THROWS(CorruptModel, open("PK\3\4 some archive"));
  CHECK_THROWS(CorruptModel, open("GG"));
  CHECK_THROWS(CorruptModel, open("GGUF"));
  CHECK_THROWS(UnsupportedModel, open(Writer(0, 0, 1)));
  CHECK_THROWS(UnsupportedModel, open(Writer(0, 0, 4)));
  CHECK_THROWS(UnsupportedModel, open(Writer(0, 0, 0x03000000)));
  CHECK(contains(message(Writer(0, 0, 0x03000000).bytes()), "big-endian"));
  CHECK_THROWS(Error, GgufFile("/nonexistent/model.gguf"));
  CHECK_THROWS(Error, GgufFile(""));
  CHECK_THROWS(Error, GgufFile("/tmp"));
  CHECK_THROWS(Error, GgufFile("/dev/null"));
  CHECK_THROWS(Error, GgufFile(std::string("a\0b", 3)));
}

TEST(a_pipe_is_refused_without_waiting) {
  const TempFile temp("");
  const std::string pipe = temp.path() + ".pipe";
  CHECK(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS(Error, GgufFile(pipe));
  std::remove(pipe.c_str());
}

TEST(absurd_counts_fail_at_once) {
  const std::string rest(65536, '\0');
  for (const std::uint64_t count : {std::uint64_t{1} << 40U, UINT64_MAX, std::uint64_t{70000}}) {
    CHECK_THROWS(CorruptModel, open(Writer(count, 0).raw(rest)));
    CHECK_THROWS(CorruptModel, open(Writer(0, count).raw(rest)));
    for (const std::uint32_t element : {0U, kI32, kString, kArray, kBool, 12U})
      CHECK_THROWS(CorruptModel, open(Writer(0, 1).key("k", kArray).u32(element).u64(count).raw(rest)));
    CHECK_THROWS(CorruptModel, open(Writer(0, 1).u64(count).raw(rest)));
    CHECK_THROWS(CorruptModel, open(Writer(0, 1).key("k", kString).u64(count).raw(rest)));
  }
}

TEST(metadata_that_does_not_add_up) {
  CHECK_THROWS(CorruptModel, open(Writer(0, 1).key("k", 13).u64(0)));
  CHECK_THROWS(CorruptModel, open(Writer(0, 1).key("k", kBool).u8(2)));
  CHECK_THROWS(CorruptModel, open(Writer(0, 1).key("", kU32).u32(0)));
  CHECK_THROWS(CorruptModel, open(Writer(0, 1).key("a\nb", kU32).u32(0)));
  CHECK_THROWS(CorruptModel, open(Writer(0, 2).key("k", kU32).u32(0).key("k", kU32).u32(0)));
  CHECK_THROWS(CorruptModel, open(Writer(0, 1).key(std::string(5000, 'k'), kU32).u32(0)));
  Writer nested(0, 1);
  nested.key("k", kArray);
  for (int depth = 0; depth < 5; ++depth) nested.u32(kArray).u64(1);
  CHECK_THROWS(CorruptModel, open(nested.u32(kU32).u64(0)));
  Writer shallow(0, 1);
  shallow.key("k", kArray).u32(kArray).u64(2).u32(kU32).u64(1).u32(9).u32(kU32).u64(0);
  open(shallow);
  for (const std::uint32_t alignment : {0U, 1U, 4U, 24U, 131072U, UINT32_MAX})
    CHECK_THROWS(CorruptModel, open(Writer(0, 1).key("general.alignment", kU32).u32(alignment)));
  CHECK_THROWS(CorruptModel, open(Writer(0, 1).key("general.alignment", kI32).u32(32)));
  open(Writer(0, 1).key("general.alignment", kU32).u32(64));
}

TEST(tensors_that_do_not_add_up) {
  const std::string data(4096, '\0');
  const auto one = [&](std::uint64_t cols, std::uint64_t rows, std::uint32_t type, std::uint64_t offset) {
    return Writer(1, 0).tensor("t", cols, rows, type, offset).pad_to(32).raw(data);
  };
  open(one(32, 32, 0, 0));
  CHECK_THROWS(CorruptModel, open(one(0, 32, 0, 0)));
  CHECK_THROWS(CorruptModel, open(one(32, 0, 0, 0)));
  CHECK_THROWS(CorruptModel, open(one(32, 33, 0, 0)));
  CHECK_THROWS(CorruptModel, open(one(32, 32, 0, 32)));
  CHECK_THROWS(CorruptModel, open(one(32, 1, 0, 8)));
  CHECK_THROWS(CorruptModel, open(one(16, 2, 8, 0)));
  CHECK_THROWS(CorruptModel, open(one(UINT64_MAX, 1, 0, 0)));
  CHECK_THROWS(CorruptModel, open(one(std::uint64_t{1} << 32U, std::uint64_t{1} << 32U, 0, 0)));
  CHECK_THROWS(CorruptModel, open(one(std::uint64_t{1} << 60U, 1, 28, 0)));
  CHECK_THROWS(CorruptModel, open(one(32, 1, 0, UINT64_MAX - 31)));
  CHECK_THROWS(CorruptModel, open(one(32, 1, 77, UINT64_MAX - 31)));
  CHECK_THROWS(CorruptModel, open(Writer(1, 0).text("t").u32(0).u32(0).u64(0).raw(data)));
  CHECK_THROWS(CorruptModel, open(Writer(1, 0).text("t").u32(5).raw(data)));
  CHECK_THROWS(CorruptModel, open(two_tensors(0)));
  Writer repeated(2, 0);
  repeated.tensor("a", 1, 1, 0, 0).tensor("a", 1, 1, 0, 32).pad_to(32).raw(data);
  CHECK_THROWS(CorruptModel, open(repeated));
}

TEST(every_truncation_is_an_error) {
  const std::string whole = two_tensors(32).bytes();
  for (std::size_t length = 0; length < whole.size(); ++length)
    CHECK_THROWS(CorruptModel, open(whole.substr(0, length)));
}

TEST(messages_are_safe_to_show) {
  const std::string text = message("\xff\n\x1b[31m");
  CHECK(contains(text, "[GgufFile.open]") && contains(text, "'\\xff\\x0a\\x1b["));
}
