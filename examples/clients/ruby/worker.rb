# Pulls messages from a queue and posts each to an HTTP address: ruby worker.rb QUEUE TARGET CONCURRENCY
#
# 2xx acknowledges a message. Any other answer returns it to the queue with a delay. After SIGTERM the worker finishes the
# messages that it has, and ends.
require "json"
require "net/http"

URL = ENV.fetch("SIGNALBOX_URL", "http://127.0.0.1:8081")
TOKEN = ENV.fetch("SIGNALBOX_TOKEN")
QUEUE, TARGET, CONCURRENCY = ARGV

def send_to(address, body, headers = {})
  uri = URI(address)
  headers = {"Content-Type" => "application/json", **headers}
  Net::HTTP.start(uri.host, uri.port, use_ssl: uri.scheme == "https", read_timeout: 60) do |http|
    answer = body ? http.post(uri.request_uri, body.to_json, headers) : http.get(uri.request_uri, headers)
    raise "#{address} answered #{answer.code}: #{answer.body}" unless answer.is_a?(Net::HTTPSuccess)
    answer.body
  end
end

def call(operation, body = nil)
  JSON.parse(send_to("#{URL}/queues/#{QUEUE}#{operation}", body, {"Authorization" => "Bearer #{TOKEN}"}))
end

def handle(message)
  # The ID is the same in every attempt, so the target can recognize a repetition.
  send_to(TARGET, message, {"Idempotency-Key" => message["id"].to_s})
end

def settle(message)
  receipts = [message["receipt"]]
  begin
    handle(message)
  rescue => error
    warn "#{message["id"]} failed: #{error.message}"
    call("/nack", {receipts: receipts, delay_seconds: 1})
  else
    call("/ack", {receipts: receipts})
  end
rescue => error
  # The lease expires, and the message is handed out again.
  warn "#{message["id"]} was not settled: #{error.message}"
end

ending = false
trap("TERM") { ending = true }
lease = call("")["lease_seconds"]

# Each thread handles one message at a time. The lease of a message begins with the pull, so a thread pulls no other.
threads = Integer(CONCURRENCY).times.map do
  Thread.new do
    until ending
      begin
        message = call("/pull", {max: 1, wait_seconds: 5})["messages"].first or next
        # Extends the lease while the message is being handled, so that no other worker receives it.
        heartbeat = Thread.new do
          loop do
            sleep lease / 3.0
            begin
              call("/extend", {receipts: [message["receipt"]], lease_seconds: lease})
            rescue => error
              warn "a lease was not extended: #{error.message}"
            end
          end
        end
        settle(message)
        heartbeat.kill
      rescue => error
        warn "pull failed: #{error.message}"
        sleep 1
      end
    end
  end
end
threads.each(&:join)
