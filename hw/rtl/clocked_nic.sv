// The NIC with a clock for each of its interfaces: the host's memory and registers have one, and each direction of the wire has one. The only ways from
// one clock to another are the queues in host_crossing, bus_crossing and wire_crossing.
//
// Every clock has a reset of its own, synchronous to it. All are held until all clocks run, and none of the interfaces is used before all have
// been released.
module clocked_nic #(
    parameter int FLOWS = 4,
    parameter int BATCH = 4,
    parameter int SETS_LOG2 = 4,
    parameter int WAYS_LOG2 = 2,
    parameter int RECEIVE_LINES_LOG2 = 7
) (
    // The NIC's own clock, and time by it: ticks of 64 ns.
    input logic clk,
    input logic rst,
    input logic [31:0] now,
    // The host's clock: registers and pushes (bus_crossing), and lines of host memory (host_crossing).
    input logic host_clk,
    input logic host_rst,
    input logic host_access_valid,
    output logic host_access_ready,
    input logic host_access_writes,
    input logic host_access_pushes,
    input logic [15:0] host_access_address,
    input logic [nic_pkg::LINE_BITS-1:0] host_access_line,
    output logic host_register_valid,
    output logic [31:0] host_register_data,
    output logic host_read,
    input logic host_read_ready,
    output logic [31:0] host_read_address,
    input logic host_data_valid,
    input logic [nic_pkg::LINE_BITS-1:0] host_data,
    output logic host_write,
    input logic host_write_ready,
    output logic [31:0] host_write_address,
    output logic [nic_pkg::LINE_BITS-1:0] host_write_data,
    // The wire's clocks.
    input logic mac_tx_clk,
    input logic mac_tx_rst,
    output logic mac_tx_valid,
    input logic mac_tx_ready,
    output logic [nic_pkg::LINE_BITS-1:0] mac_tx_data,
    output logic [nic_pkg::LINE_BYTES_LOG2:0] mac_tx_bytes,
    output logic mac_tx_last,
    output logic [47:0] mac_tx_remote,
    input logic mac_rx_clk,
    input logic mac_rx_rst,
    input logic mac_rx_valid,
    input logic [nic_pkg::LINE_BITS-1:0] mac_rx_data,
    input logic [nic_pkg::LINE_BYTES_LOG2:0] mac_rx_bytes,
    input logic mac_rx_last,
    input logic [47:0] mac_rx_remote
);
  logic csr_write;
  logic [15:0] csr_address;
  logic [31:0] csr_write_data;
  logic [31:0] csr_read_data;
  logic push_valid;
  logic push_ready;
  logic [7:0] push_flow;
  logic [nic_pkg::LINE_BITS-1:0] push_line;
  bus_crossing registers_and_pushes (
      .host_valid(host_access_valid),
      .host_ready(host_access_ready),
      .host_writes(host_access_writes),
      .host_pushes(host_access_pushes),
      .host_address(host_access_address),
      .host_line(host_access_line),
      .host_read_valid(host_register_valid),
      .host_read_data(host_register_data),
      .*
  );

  logic read;
  logic read_ready;
  logic [31:0] read_address;
  logic data_valid;
  logic [nic_pkg::LINE_BITS-1:0] data;
  logic write;
  logic write_ready;
  logic [31:0] write_address;
  logic [nic_pkg::LINE_BITS-1:0] write_data;
  host_crossing memory (
      .*
  );

  logic tx_valid;
  logic tx_ready;
  logic [nic_pkg::LINE_BITS-1:0] tx_data;
  logic [nic_pkg::LINE_BYTES_LOG2:0] tx_bytes;
  logic tx_last;
  logic [47:0] tx_remote;
  logic rx_valid;
  logic [nic_pkg::LINE_BITS-1:0] rx_data;
  logic [nic_pkg::LINE_BYTES_LOG2:0] rx_bytes;
  logic rx_last;
  logic rx_spoiled;
  logic [47:0] rx_remote;
  wire_crossing lines (
      .*
  );

  nic #(
      .FLOWS(FLOWS),
      .BATCH(BATCH),
      .SETS_LOG2(SETS_LOG2),
      .WAYS_LOG2(WAYS_LOG2),
      .RECEIVE_LINES_LOG2(RECEIVE_LINES_LOG2)
  ) core (
      .host_read(read),
      .host_read_ready(read_ready),
      .host_read_address(read_address),
      .host_data_valid(data_valid),
      .host_data(data),
      .host_write(write),
      .host_write_ready(write_ready),
      .host_write_address(write_address),
      .host_write_data(write_data),
      .*
  );
endmodule
