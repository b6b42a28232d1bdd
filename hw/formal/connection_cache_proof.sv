// connection_cache: a connection's state stays its own. Whatever other connections are looked up and changed in between, and whenever lines are
// written back and read again, the transport sees of a connection what it last wrote there, or what the host gave it with "anew"; a line goes back
// to its own place in the table, as the transport last wrote it, and only if it has changed it. Two sets of two ways; 8 bits of the line, 4 at each end: all bits are
// treated alike.
module connection_cache_proof (
    input logic clk,
    input logic rst,
    input logic lookup,
    input logic [15:0] lookup_connection,
    input logic lookup_anew,
    input logic update,
    input logic [7:0] update_any,
    input logic read_ready,
    input logic data_valid,
    input logic [7:0] data_any,
    input logic write_ready,
    input logic host_writes,
    input logic [7:0] host_any
);
  logic [31:0] table_base;
  assign table_base = 32'h100;
  logic lookup_ready;
  logic answer;
  logic [511:0] answer_line;
  logic [511:0] update_line;
  logic read;
  logic [31:0] read_address;
  logic [511:0] data;
  logic write;
  logic [31:0] write_address;
  logic [511:0] write_data;
  logic count_hit;
  logic count_miss;
  connection_cache #(
      .SETS_LOG2(1),
      .WAYS_LOG2(1)
  ) dut (
      .*
  );

  function automatic logic [511:0] line_of(input logic [7:0] bits);
    line_of = '0;
    line_of[3:0] = bits[3:0];
    line_of[511:508] = bits[7:4];
  endfunction
  function automatic logic [7:0] bits_of(input logic [511:0] line);
    bits_of = {line[511:508], line[3:0]};
  endfunction

  // One connection, any.
  (* anyconst *) logic [15:0] watched;
  // What the table in host memory has of it at first.
  (* anyconst *) logic [7:0] first;
  logic [7:0] host_q;
  // What the transport knows of it: what it has written, or was answered anew.
  logic [7:0] mine_q;
  logic changed_q;
  // The host has written the line since, so that it is to be read anew.
  logic host_wrote_q;

  // The lookup that is under way, and the one that was answered last and can be updated.
  logic [15:0] connection_q;
  logic anew_q;
  logic waits_q;
  logic answered_q;
  logic is_watched;
  assign is_watched = connection_q == watched;

  // A read that memory has taken and not answered, and what it has found.
  logic reads_q;
  logic reads_watched_q;
  logic [7:0] found_q;
  logic writes_watched;
  assign writes_watched = write && write_address == table_base + 32'(watched);
  assign data = line_of(reads_watched_q ? found_q : data_any);
  assign update_line = line_of(update_any);

  initial assume (rst);
  always_comb begin
    assume (!lookup || lookup_ready);
    // An update is of the line that was answered last, once, before the next lookup or with it.
    assume (!update || answered_q);
    assume (!data_valid || reads_q);
    // What the host has written is looked at anew.
    assume (!(lookup && lookup_connection == watched && host_wrote_q && !lookup_anew));
    // The host writes a line that nothing is under way for.
    assume (!(host_writes && (lookup || waits_q || answered_q) && (is_watched || lookup_connection == watched)));
  end
  always_ff @(posedge clk) begin
    if (rst) begin
      host_q <= first;
      mine_q <= first;
      changed_q <= 1'b0;
      host_wrote_q <= 1'b0;
      waits_q <= 1'b0;
      answered_q <= 1'b0;
      reads_q <= 1'b0;
    end else begin
      // Lookups are answered one at a time.
      assert (!answer || waits_q);
      assert (!(lookup_ready && waits_q));
      if (answer) waits_q <= 1'b0;
      answered_q <= answer || (answered_q && !update && !lookup);
      if (lookup) begin
        waits_q <= 1'b1;
        connection_q <= lookup_connection;
        anew_q <= lookup_anew;
      end
      // What is answered is the connection's own.
      if (answer && is_watched && !anew_q) assert (bits_of(answer_line) == mine_q);
      if (answer && is_watched && anew_q) begin
        mine_q <= bits_of(answer_line);
        changed_q <= 1'b0;
        host_wrote_q <= 1'b0;
        // It comes from the table.
        assert (reads_watched_q && data_valid);
      end
      if (update && is_watched) begin
        mine_q <= update_any;
        changed_q <= 1'b1;
      end
      // Of the table, its line is written with what was changed of it, and nothing else.
      if (writes_watched) assert (bits_of(write_data) == mine_q && changed_q);
      if (writes_watched && write_ready) begin
        host_q <= bits_of(write_data);
        changed_q <= 1'b0;
      end
      if (host_writes) begin
        host_q <= host_any;
        host_wrote_q <= 1'b1;
      end
      // Memory answers one read after the other, with what is there when it takes it.
      if (read && read_ready) begin
        assert (!reads_q);
        reads_q <= 1'b1;
        reads_watched_q <= read_address == table_base + 32'(watched);
        found_q <= host_q;
      end
      if (data_valid) reads_q <= 1'b0;
      assert (!(read && write));
    end
  end
endmodule
