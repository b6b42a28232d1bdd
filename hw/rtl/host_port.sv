// Shares the one port to host memory among those who read and write lines.
// Reads are answered in order. Reads of the connection cache go before the poller's, for a miss holds everything up; of
// writes, those to receive rings go first, and status lines last.
module host_port #(
    parameter int READS_LOG2 = 5
) (
    input logic clk,
    input logic rst,
    input logic poll_read,
    output logic poll_read_ready,
    input logic [31:0] poll_read_address,
    output logic poll_data_valid,
    input logic cache_read,
    output logic cache_read_ready,
    input logic [31:0] cache_read_address,
    output logic cache_data_valid,
    input logic receive_write,
    output logic receive_write_ready,
    input logic [31:0] receive_write_address,
    input logic [nic_pkg::LINE_BITS-1:0] receive_write_data,
    input logic cache_write,
    output logic cache_write_ready,
    input logic [31:0] cache_write_address,
    input logic [nic_pkg::LINE_BITS-1:0] cache_write_data,
    input logic status_write,
    output logic status_write_ready,
    input logic [31:0] status_write_address,
    input logic [nic_pkg::LINE_BITS-1:0] status_write_data,
    // To the host.
    output logic host_read,
    input logic host_read_ready,
    output logic [31:0] host_read_address,
    input logic host_data_valid,
    output logic host_write,
    input logic host_write_ready,
    output logic [31:0] host_write_address,
    output logic [nic_pkg::LINE_BITS-1:0] host_write_data
);
  // Who waits for each read that is out: 1 for the cache.
  logic waiting_ready;
  logic waiting_valid;
  logic waiting_cache;

  assign host_read = (poll_read || cache_read) && waiting_ready;
  assign host_read_address = cache_read ? cache_read_address : poll_read_address;
  assign cache_read_ready = host_read_ready && waiting_ready;
  assign poll_read_ready = host_read_ready && waiting_ready && !cache_read;

  /* verilator lint_off PINCONNECTEMPTY */
  fifo #(
      .WIDTH(1),
      .DEPTH_LOG2(READS_LOG2)
  ) waiting (
      .clk,
      .rst,
      .push(host_read && host_read_ready),
      .push_data(cache_read),
      .push_ready(waiting_ready),
      .pop(host_data_valid),
      .pop_valid(waiting_valid),
      .pop_data(waiting_cache),
      .level()
  );
  /* verilator lint_on PINCONNECTEMPTY */

  assign poll_data_valid = host_data_valid && waiting_valid && !waiting_cache;
  assign cache_data_valid = host_data_valid && waiting_valid && waiting_cache;

  assign host_write = receive_write || cache_write || status_write;
  assign receive_write_ready = host_write_ready;
  assign cache_write_ready = host_write_ready && !receive_write;
  assign status_write_ready = host_write_ready && !receive_write && !cache_write;

  always_comb begin
    host_write_address = status_write_address;
    host_write_data = status_write_data;
    if (receive_write) begin
      host_write_address = receive_write_address;
      host_write_data = receive_write_data;
    end else if (cache_write) begin
      host_write_address = cache_write_address;
      host_write_data = cache_write_data;
    end
  end
endmodule
