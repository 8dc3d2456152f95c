# Reads a Homebrew formula where there is no Homebrew: `ruby formula_reader.rb FORMULA`. Carries out `install` without running
# anything and prints the commands; a word that a formula does not have is an error, as it would be in Homebrew.
require "pathname"

module OS
  def self.mac? = true
end

class Formula
  FACTS = {}
  class << self
    %i[desc homepage url sha256 license].each { |fact| define_method(fact) { |value| FACTS[fact] = value } }
    def depends_on(what) = (FACTS[:depends_on] ||= []).push(what)
    def service(&block) = Service.new.instance_eval(&block)
    def test(&block) = define_method(:run_test, &block)
  end

  class Service
    def run(words) = puts("service #{words.join(" ")}")
    def keep_alive(_) = nil
    def log_path(_) = nil
    def error_log_path(_) = nil
    def opt_bin = Pathname("BIN")
    def var = Pathname("VAR")
  end

  class Bin < Pathname
    def install_symlink(path) = puts("link #{path}")
  end

  def system(*words) = puts(words.join(" "))
  def libexec = Pathname("LIBEXEC")
  def buildpath = Pathname("BUILD")
  def bin = Bin.new("BIN")

  def generate_completions_from_executable(path, *words, shells:)
    puts "completion #{path} #{words.join(" ")} #{shells.join(",")}"
  end

  def testpath = Pathname(Dir.mktmpdir)
  def shell_output(line) = puts("test #{line}") || "It is installed."
  def assert_match(wanted, found) = found.include?(wanted) || raise("#{wanted} is not in #{found}")
end

require "tmpdir"
load ARGV.fetch(0)
puts "depends on #{Formula::FACTS.fetch(:depends_on).join(", ")}"
formula = Pippin.new
formula.install
formula.run_test
